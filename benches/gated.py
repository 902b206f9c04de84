#!/usr/bin/env python3
"""Time the gated RMSNorm beside torch.compile of the formula, flash-linear-attention's fused
norm-gate (where it can be imported: pack-fla.sh) and a copy of the same bytes.

    cargo build --release -p cake-rmsnorm-capi --features cuda
    python3 benches/gated.py --lib target/release/libcake_rmsnorm_capi.so --peers peers.py \
        --json out.json --tsv out.gated.tsv --commit $(git rev-parse HEAD)

Timing is that of peers.py, whose `Timer` and `Ceiling` are used: replayed CUDA graphs, L2 emptied by
reading before each operation, the median of all samples; fractions are of the faster copy.

Before it is timed, each operation's outputs are compared with the formula in FP64: `err` is the
largest relative L2 error among them, and where it is above LIMIT nothing is timed.

Bytes: forward reads x and z, writes y (6 an element); backward reads dy, x, z, writes dx, dz (10).
Backwards recompute the gate from x and z, and rstd too, but for `ours_rstd` and
flash-linear-attention, whose forwards store it; the latter rounds dw to the weight's type.
"""

import argparse
import ctypes
import datetime
import importlib
import importlib.util
import json
import subprocess
import sys

EPS = 1e-6
ROWS = [1024, 16384, 98304, 393216, 1048576, 2097152, 4194304]
# Rounding to BF16 makes an error of about 2^-9.
LIMIT = 2.0 ** -7
OUTPUTS = {"fwd": ("y",), "bwd": ("dx", "dz", "dw")}
COLUMNS = ("rows", "hidden", "weight", "order", "op", "candidate", "us", "us_p10", "us_p90",
           "copy_us", "frac", "err")


def load_peers(path):
    spec = importlib.util.spec_from_file_location("peers", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Ours:
    def __init__(self, path):
        p, ll, i32, f32 = ctypes.c_void_p, ctypes.c_longlong, ctypes.c_int, ctypes.c_float
        self.lib = ctypes.CDLL(path)
        self.lib.rmsnorm_bench_gated_workspace.restype = ll
        self.lib.rmsnorm_bench_gated_workspace.argtypes = [ll] * 3 + [i32] * 2
        self.lib.rmsnorm_bench_gated_fwd.argtypes = [p] * 5 + [ll] * 3 + [f32, i32, i32, p]
        self.lib.rmsnorm_bench_gated_bwd.argtypes = [p] * 9 + [ll] * 3 + [f32, i32, i32, p]

    def build(self, t, order, keep_rstd=False):
        import torch
        rows, hidden = t["x"].shape
        wdtype = int(t["w"].dtype == torch.bfloat16)
        size = self.lib.rmsnorm_bench_gated_workspace(rows, hidden, 1, wdtype, order)
        workspace = torch.empty(max(size, 16), dtype=torch.uint8, device="cuda")
        # What is not written shows in the comparison.
        y, dx, dz = (torch.full_like(t["x"], float("nan")) for _ in range(3))
        dw = torch.full((hidden,), float("nan"), dtype=torch.float32, device="cuda")
        rstd = torch.full((rows,), float("nan"), dtype=torch.float32, device="cuda")

        def kept():
            return rstd.data_ptr() if keep_rstd else None

        def stream():
            return torch.cuda.current_stream().cuda_stream

        def check(code):
            if code:
                raise RuntimeError(f"returned {code}")

        def fwd():
            check(self.lib.rmsnorm_bench_gated_fwd(
                t["x"].data_ptr(), t["z"].data_ptr(), t["w"].data_ptr(), y.data_ptr(),
                kept(), rows, hidden, 1, EPS, wdtype, order, stream()))
            return y

        def bwd():
            check(self.lib.rmsnorm_bench_gated_bwd(
                t["dy"].data_ptr(), t["x"].data_ptr(), t["z"].data_ptr(), t["w"].data_ptr(),
                kept(), dx.data_ptr(), dz.data_ptr(), dw.data_ptr(), workspace.data_ptr(),
                rows, hidden, 1, EPS, wdtype, order, stream()))
            return dx, dz, dw
        fwd()  # the rstd that the backward may read
        return fwd, bwd

    def build_rstd(self, t, order):
        return self.build(t, order, keep_rstd=True)


def norm(u):
    import torch
    return u * torch.rsqrt(u.square().mean(-1, keepdim=True) + EPS)


def formula_fwd(order, wide="float32"):
    """The formula, its arithmetic in the type `wide`; y in the type of x, or in FP64."""
    def fwd(x, z, w):
        import torch
        kind = getattr(torch, wide)
        x_, w_, g = x.to(kind), w.to(kind), torch.nn.functional.silu(z.to(kind))
        y = norm(x_) * w_ * g if order == 0 else norm(x_ * g) * w_
        return y if wide == "float64" else y.to(x.dtype)
    return fwd


def formula_bwd(order, wide="float32"):
    def bwd(dy, x, z, w):
        import torch
        kind = getattr(torch, wide)
        x_, z_, dy_, w_ = x.to(kind), z.to(kind), dy.to(kind), w.to(kind)
        s = torch.sigmoid(z_)
        g, slope = z_ * s, s * (1 + z_ * (1 - s))
        u = x_ if order == 0 else x_ * g
        r = torch.rsqrt(u.square().mean(-1, keepdim=True) + EPS)
        n = u * r
        of_norm = dy_ * g if order == 0 else dy_
        a = of_norm * w_
        du = r * (a - n * (a * n).mean(-1, keepdim=True))
        if order == 0:
            dx, dz = du, dy_ * n * w_ * slope
        else:
            dx, dz = du * g, du * x_ * slope
        dw = (of_norm * n).sum(0)
        return (dx, dz, dw) if wide == "float64" else (dx.to(x.dtype), dz.to(z.dtype), dw)
    return bwd


def largest_error(op, outputs, t, order, rows=65536):
    """The largest relative L2 error of an operation's outputs against the formula in FP64."""
    import torch
    outputs = outputs if op == "bwd" else (outputs,)
    outputs = {name: output.detach() for name, output in zip(OUTPUTS[op], outputs)}
    wrong = dict.fromkeys(outputs, 0.0)
    size = dict.fromkeys(outputs, 0.0)

    def compare(name, got, exact):
        wrong[name] += (got.double() - exact).square().sum().item()
        size[name] += exact.square().sum().item()

    dw = 0
    for start in range(0, t["x"].shape[0], rows):
        part = slice(start, start + rows)
        x, z, dy = t["x"][part], t["z"][part], t["dy"][part]
        if op == "fwd":
            compare("y", outputs["y"][part], formula_fwd(order, "float64")(x, z, t["w"]))
        else:
            dx, dz, of_part = formula_bwd(order, "float64")(dy, x, z, t["w"])
            compare("dx", outputs["dx"][part], dx)
            compare("dz", outputs["dz"][part], dz)
            dw = dw + of_part
    if op == "bwd":
        compare("dw", outputs["dw"], dw)
    errors = torch.tensor([wrong[name] / size[name] for name in outputs], dtype=torch.float64)
    return errors.sqrt().max().item()


def build_compile(t, order):
    import torch
    torch._dynamo.reset()  # shapes are static: each is a compilation, and their number is limited
    fwd = torch.compile(formula_fwd(order), dynamic=False, fullgraph=True)
    bwd = torch.compile(formula_bwd(order), dynamic=False, fullgraph=True)
    return (lambda: fwd(t["x"], t["z"], t["w"]), lambda: bwd(t["dy"], t["x"], t["z"], t["w"]))


def build_fla(t, order):
    """flash-linear-attention (norm before gate)."""
    if order:
        raise NotImplementedError("norm before gate alone")
    import torch
    from fla.modules.fused_norm_gate import rms_norm_gated
    x, z, w = (t[k].detach().requires_grad_() for k in ("x", "z", "w"))

    def fwd():
        return rms_norm_gated(x, z, w, None, activation="swish", eps=EPS)
    y = fwd()

    def bwd():
        return torch.autograd.grad(y, (x, z, w), t["dy"], retain_graph=True)
    return fwd, bwd


def importable(names):
    """The candidates that are there, and why others are not."""
    there, left_out = [], {}
    for name in names:
        try:
            if name == "fla":
                importlib.import_module("fla.modules.fused_norm_gate")
            there.append(name)
        except Exception as e:
            left_out[name] = f"{type(e).__name__}: {e}"
            print(f"{name} is left out: {left_out[name]}", flush=True)
    return there, left_out


def measure(op, fn, t, order, timer, ceiling, peers, quick):
    """Compare the outputs of an operation with FP64, and time it."""
    import torch
    with torch.cuda.stream(timer.stream):
        err = largest_error(op, fn(), t, order)
    if not err <= LIMIT:
        raise ArithmeticError(f"{op}: relative error {err:.2g}")
    rows, hidden = t["x"].shape
    nbytes = {"fwd": 6, "bwd": 10}[op] * rows * hidden
    result = peers.summarise(timer.samples(fn, *peers.repeats(nbytes, quick)))
    copy = ceiling.get(nbytes)["us"]
    return dict(result, op=op, copy_us=copy, frac=copy / result["us"], err=err)


def write_tsv(path, out, commit):
    """The format of docs/measurements/*.gated.tsv."""
    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True, text=True).stdout.split("\n")[0]
    versions = ", ".join(f"{name} {version}" for name, version in out["versions"].items())
    notes = "".join(f"; {name} left out: {why}" for name, why in out["left_out"].items())
    notes += "".join(f"; {e['candidate']} {e['rows']} {e['weight']} order {e['order']}: {e['error']}"
                     for e in out["errors"])
    with open(path, "w") as f:
        f.write(f"# date {datetime.date.today()}, gpu {out['gpu']}, driver {driver}, commit {commit}\n")
        f.write(f"# benches/{out['command']}; {versions}{notes}\n")
        f.write("\t".join(COLUMNS) + "\n")
        for result in out["results"]:
            cells = (result[column] for column in COLUMNS)
            cells = (f"{c:.3g}" if k == "err" else f"{c:.4g}" if k == "frac" else str(c)
                     for k, c in zip(COLUMNS, cells))
            f.write("\t".join(cells) + "\n")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("--lib", required=True)
    p.add_argument("--peers", required=True, help="path of peers.py")
    p.add_argument("--rows", type=lambda s: [int(v) for v in s.split("+")], default=ROWS)
    p.add_argument("--hidden", type=lambda s: [int(v) for v in s.split("+")], default=[128])
    p.add_argument("--weights", default="f32,bf16")
    p.add_argument("--orders", default="0,1")
    p.add_argument("--candidates", default="ours,ours_rstd,compile,fla")
    p.add_argument("--quick", action="store_true")
    p.add_argument("--json")
    p.add_argument("--tsv")
    p.add_argument("--commit", default="unknown", help="what --tsv names as the measured commit")
    args = p.parse_args()
    import torch
    peers = load_peers(args.peers)
    candidates, left_out = importable(args.candidates.split(","))
    timer = peers.Timer()
    ceiling = peers.Ceiling(timer, args.quick)
    ours = Ours(args.lib)
    builders = {"ours": ours.build, "ours_rstd": ours.build_rstd, "compile": build_compile,
                "fla": build_fla}
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    for _ in range(300):
        a @ a
    torch.cuda.synchronize()
    del a
    out = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
           "versions": {"torch": torch.__version__}, "left_out": left_out,
           "command": " ".join(["gated.py", *sys.argv[1:]]), "results": [], "errors": []}
    if "fla" in candidates:
        out["versions"]["fla-core"] = importlib.import_module("fla").__version__
    for hidden in args.hidden:
        for rows in args.rows:
            g = torch.Generator(device="cuda").manual_seed(rows)
            with torch.cuda.stream(timer.stream):
                bf = dict(device="cuda", dtype=torch.bfloat16, generator=g)
                t = {k: torch.randn((rows, hidden), **bf) for k in ("x", "z", "dy")}
                w = 1 + 0.1 * torch.randn((hidden,), device="cuda", generator=g)
            timer.stream.synchronize()
            for wname in args.weights.split(","):
                t["w"] = w if wname == "f32" else w.to(torch.bfloat16)
                for order in map(int, args.orders.split(",")):
                    line = []
                    for name in candidates:
                        case = dict(rows=rows, hidden=hidden, weight=wname, order=order,
                                    candidate=name)
                        try:
                            with torch.cuda.stream(timer.stream):
                                built = builders[name](t, order)
                            for op, fn in zip(("fwd", "bwd"), built):
                                r = measure(op, fn, t, order, timer, ceiling, peers, args.quick)
                                out["results"].append(dict(r, **case))
                                line.append(f"{name}.{op} {r['us']:.1f} ({r['frac']:.2f})")
                        except NotImplementedError as e:
                            line.append(f"{name}: {e}")
                        except Exception as e:
                            torch.cuda.synchronize()
                            error = f"{type(e).__name__} {str(e)[:160]!r}"
                            out["errors"].append(dict(case, error=error))
                            line.append(f"{name}: {error}")
                        built = fn = None
                    print(f"T={rows} H={hidden} {wname} order={order} | " + ", ".join(line),
                          flush=True)
            t = None
            if args.json:
                with open(args.json, "w") as f:
                    json.dump(out, f)
            if args.tsv:
                write_tsv(args.tsv, out, args.commit)


if __name__ == "__main__":
    main()

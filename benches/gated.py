#!/usr/bin/env python3
"""Time the gated RMSNorm beside torch.compile of the formula, flash-linear-attention's fused
norm-gate (where it can be imported) and a copy of the same bytes.

    cargo build --release -p cake-rmsnorm-capi --features cuda
    python3 benches/gated.py --lib target/release/libcake_rmsnorm_capi.so --peers peers.py --json out.json

Timing is that of peers.py, whose `Timer` and `Ceiling` are used: replayed CUDA graphs, L2 emptied by
reading before each operation, the median of all samples; fractions are of the faster copy.

Bytes: forward reads x and z, writes y (6 a element); backward reads dy, x, z, writes dx, dz (10).
Backwards recompute rstd and the gate from x and z; nothing else is kept.
"""

import argparse
import ctypes
import importlib.util
import json

EPS = 1e-6
ROWS = [1024, 16384, 98304, 393216, 1048576, 2097152, 4194304]


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

    def build(self, t, order):
        import torch
        rows, hidden = t["x"].shape
        wdtype = int(t["w"].dtype == torch.bfloat16)
        size = self.lib.rmsnorm_bench_gated_workspace(rows, hidden, 1, wdtype, order)
        workspace = torch.empty(max(size, 16), dtype=torch.uint8, device="cuda")
        y, dx, dz = (torch.empty_like(t["x"]) for _ in range(3))
        dw = torch.empty(hidden, dtype=torch.float32, device="cuda")

        def stream():
            return torch.cuda.current_stream().cuda_stream

        def check(code):
            if code:
                raise RuntimeError(f"returned {code}")

        def fwd():
            check(self.lib.rmsnorm_bench_gated_fwd(
                t["x"].data_ptr(), t["z"].data_ptr(), t["w"].data_ptr(), y.data_ptr(), None,
                rows, hidden, 1, EPS, wdtype, order, stream()))
            return y

        def bwd():
            check(self.lib.rmsnorm_bench_gated_bwd(
                t["dy"].data_ptr(), t["x"].data_ptr(), t["z"].data_ptr(), t["w"].data_ptr(), None,
                dx.data_ptr(), dz.data_ptr(), dw.data_ptr(), workspace.data_ptr(),
                rows, hidden, 1, EPS, wdtype, order, stream()))
            return dx, dz, dw
        return fwd, bwd


def norm(u):
    import torch
    return u * torch.rsqrt(u.square().mean(-1, keepdim=True) + EPS)


def formula_fwd(order):
    def fwd(x, z, w):
        import torch
        x_, g = x.float(), torch.nn.functional.silu(z.float())
        y = norm(x_) * w.float() * g if order == 0 else norm(x_ * g) * w.float()
        return y.to(x.dtype)
    return fwd


def formula_bwd(order):
    def bwd(dy, x, z, w):
        import torch
        x_, z_, dy_, w_ = x.float(), z.float(), dy.float(), w.float()
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
        return dx.to(x.dtype), dz.to(z.dtype), (of_norm * n).sum(0)
    return bwd


def build_compile(t, order):
    import torch
    torch._dynamo.reset()  # shapes are static: each is a compilation, and their number is limited
    fwd = torch.compile(formula_fwd(order), dynamic=False, fullgraph=True)
    bwd = torch.compile(formula_bwd(order), dynamic=False, fullgraph=True)
    return (lambda: fwd(t["x"], t["z"], t["w"]), lambda: bwd(t["dy"], t["x"], t["z"], t["w"]))


def build_fla(t, order):
    """flash-linear-attention (norm before gate). Its backward keeps rstd and a BF16 dw."""
    if order:
        raise NotImplementedError("norm before gate alone")
    import torch
    from fla.modules.fused_norm_gate import rms_norm_gated
    x, z, w = (t[k].detach().requires_grad_() for k in ("x", "z", "w"))
    y = rms_norm_gated(x, z, w, None, activation="swish", eps=EPS)

    def fwd():
        return rms_norm_gated(x, z, w, None, activation="swish", eps=EPS)

    def bwd():
        return torch.autograd.grad(y, (x, z, w), t["dy"], retain_graph=True)
    return fwd, bwd


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("--lib", required=True)
    p.add_argument("--peers", required=True, help="path of peers.py")
    p.add_argument("--rows", type=lambda s: [int(v) for v in s.split("+")], default=ROWS)
    p.add_argument("--hidden", type=lambda s: [int(v) for v in s.split("+")], default=[128])
    p.add_argument("--weights", default="f32,bf16")
    p.add_argument("--orders", default="0,1")
    p.add_argument("--candidates", default="ours,compile,fla")
    p.add_argument("--quick", action="store_true")
    p.add_argument("--json")
    args = p.parse_args()
    import torch
    peers = load_peers(args.peers)
    timer = peers.Timer()
    ceiling = peers.Ceiling(timer, args.quick)
    ours = Ours(args.lib)
    builders = {"ours": ours.build, "compile": build_compile, "fla": build_fla}
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    for _ in range(300):
        a @ a
    torch.cuda.synchronize()
    del a
    results = []
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
                    for name in args.candidates.split(","):
                        try:
                            with torch.cuda.stream(timer.stream):
                                built = builders[name](t, order)
                            for op, fn, each in zip(("fwd", "bwd"), built, (6, 10)):
                                nbytes = each * rows * hidden
                                reps, replays = peers.repeats(nbytes, args.quick)
                                r = peers.summarise(timer.samples(fn, reps, replays))
                                copy = ceiling.get(nbytes)["us"]
                                r.update(rows=rows, hidden=hidden, w=wname, order=order, op=op,
                                         candidate=name, copy_us=copy, frac=copy / r["us"])
                                results.append(r)
                                line.append(f"{name}.{op} {r['us']:.1f} ({r['frac']:.2f})")
                        except Exception as e:
                            torch.cuda.synchronize()
                            line.append(f"{name}: {type(e).__name__} {str(e)[:80]}")
                    print(f"T={rows} H={hidden} {wname} order={order} | " + ", ".join(line),
                          flush=True)
            t = None
            if args.json:
                with open(args.json, "w") as f:
                    json.dump({"gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
                               "results": results}, f)


if __name__ == "__main__":
    main()

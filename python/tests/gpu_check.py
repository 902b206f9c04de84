#!/usr/bin/env python3
"""The PyTorch module on a GPU: bits against the CPU's, gradients against FP64, CUDA graphs, streams,
threads, torch.compile, memory, and a training loop that ends in the same weights twice.

    CAKE_RMSNORM_LIBRARY=libcake_rmsnorm_capi.so python3 python/tests/gpu_check.py --json out.json

Needs PyTorch with CUDA and a library built with feature `cuda`. Prints a line a check, and exits with
1 if one failed.
"""

import argparse
import json
import os
import pathlib
import sys
import threading
import time
import traceback

# Asked of cuBLAS before CUDA starts, for the training loop.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import reference
import torch

import cake_rmsnorm
from cake_rmsnorm import RMSNorm, _launch, gated_rms_norm, rms_norm

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
EPS = 1e-5
CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def random(*shape, dtype=F32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype)


def same(a, b):
    """Equal bits, wherever the two are."""
    a, b = (t.detach().cpu().contiguous() for t in (a, b))
    return a.dtype == b.dtype and a.shape == b.shape and bool(
        torch.equal(a.view(torch.uint8), b.view(torch.uint8))
    )


def require(condition, what):
    if not condition:
        raise AssertionError(what)


def poison():
    """Leaves NaN in what the allocator hands out next."""
    blocks = [torch.full((1 << size,), float("nan"), device="cuda") for size in range(8, 25)]
    del blocks


PLAIN = [
    # leading shape, H, input, weight, residual, offset
    ((1,), 4096, BF16, F32, False, 0.0),
    ((32,), 2048, BF16, BF16, True, 0.0),
    ((4099,), 4096, BF16, F32, True, 0.0),
    ((16384,), 1024, BF16, BF16, False, 1.0),
    ((3, 700), 512, BF16, F32, False, 0.0),
    ((20000,), 128, BF16, F32, True, 0.0),
    ((1025,), 8192, BF16, F32, False, 0.0),
    ((513,), 16384, BF16, F32, True, 0.0),
    ((9,), 65536, BF16, BF16, False, 0.0),
    ((2000,), 768, BF16, None, False, 0.0),
    ((130,), 33, F32, F16, True, 1.0),
    ((2050,), 1000, F32, F32, False, 0.0),
    ((2050,), 1024, F16, F16, True, 0.0),
]


def operands(leading, hidden, input_type, weight_type, residual, seed=0):
    shape = (*leading, hidden)
    x, r, dy, dh = (random(*shape, dtype=input_type, seed=seed + i) for i in range(4))
    w = None if weight_type is None else random(hidden, dtype=weight_type, seed=seed + 4)
    return x, r if residual else None, w, dy, dh if residual else None


def run(x, r, w, dy, dh, offset):
    """Everything that a forward and a backward give: rstd kept, and worked out again."""
    *outputs, rstd = _launch.forward(x, r, w, EPS, offset, True)
    normed = x if r is None else outputs[1]
    gradients = _launch.backward(dy, dh, normed, w, rstd, EPS, offset, True, w is not None)
    again = _launch.backward(dy, dh, normed, w, None, EPS, offset, True, w is not None)
    return [*outputs, rstd, *gradients, *again]


def to_gpu(tensors):
    return [None if t is None else t.cuda() for t in tensors]


@check
def captures_need_loaded_kernels():
    """Before anything is loaded: refused by name under capture, and once prepared captured."""
    x = random(5, 40, dtype=BF16).cuda()
    # Opens the device, and loads nothing.
    _launch.operator(40, _launch.DTYPES[BF16], 0, EPS, 0.0).workspace_bytes(0, 5, False)
    refused = ""
    torch.cuda.synchronize()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        x + 1
        try:
            rms_norm(x, eps=EPS)
        except cake_rmsnorm.Error as error:
            refused = str(error)
    require("is not loaded on this device" in refused, f"not refused: {refused}")
    cake_rmsnorm.prepare(40, BF16, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = rms_norm(x, eps=EPS)
    y.fill_(float("nan"))
    graph.replay()
    require(same(y, rms_norm(x.cpu(), eps=EPS)), "bits of the graph")
    return refused.split(":")[0]


@check
def bits_equal_the_cpus():
    count = 0
    for leading, hidden, input_type, weight_type, residual, offset in PLAIN:
        tensors = operands(leading, hidden, input_type, weight_type, residual)
        expected = run(*tensors, offset)
        gpu = to_gpu(tensors)
        poison()
        for name, (found, golden) in enumerate(zip(run(*gpu, offset), expected)):
            require(same(found, golden), f"T={leading} H={hidden} {input_type}: output {name}")
            count += found.numel()
    return f"{len(PLAIN)} cases, {count} elements"


@check
def strided_views_in_place():
    buffer = torch.full((700, 12 * 64), float("nan"), dtype=BF16)
    q = buffer[:, 256:512].unflatten(-1, (4, 64))
    q.copy_(random(700, 4, 64, dtype=BF16))
    flat = torch.full((300, 130), float("nan"), dtype=BF16)
    odd = flat[:, 1:98]
    odd.copy_(random(300, 97, dtype=BF16))
    views = {"heads": q, "odd": odd, "repeated": random(64, dtype=BF16).expand(50, 64)}
    for name, view in views.items():
        w, dy = random(view.shape[-1], seed=1), random(*view.shape, dtype=BF16, seed=2)
        expected = run(view.clone(memory_format=torch.contiguous_format), None, w, dy, None, 0.0)
        # The same strides on the GPU: the whole buffer goes there.
        storage = torch.empty_strided(
            (view.untyped_storage().nbytes() // 2,), (1,), dtype=BF16, device="cuda"
        )
        storage.copy_(torch.as_strided(view, storage.shape, (1,), 0))
        there = torch.as_strided(storage, view.shape, view.stride(), view.storage_offset())
        for found, golden in zip(run(there, None, w.cuda(), dy.cuda(), None, 0.0), expected):
            require(same(found, golden), name)
    return ", ".join(views)


@check
def gated_bits_equal_the_cpus():
    cases = [
        ((4096,), 128, "norm_first", 1, F32),
        ((512, 8), 128, "gate_first", 1, BF16),
        ((300,), 4096, "norm_first", 1, F32),
        ((300,), 4096, "gate_first", 8, F32),
        ((70000,), 64, "norm_first", 1, BF16),
    ]
    for leading, hidden, order, groups, weight_type in cases:
        x, z, dy = (random(*leading, hidden, dtype=BF16, seed=i) for i in range(3))
        w = random(hidden, dtype=weight_type, seed=3)

        def both(x, z, w, dy):
            y, rstd = _launch.gated_forward(x, z, w, EPS, order, groups, True)
            kept = _launch.gated_backward(dy, x, z, w, rstd, EPS, order, groups, True)
            again = _launch.gated_backward(dy, x, z, w, None, EPS, order, groups, True)
            return [y, rstd, *kept, *again]

        expected = both(x, z, w, dy)
        gpu = [t.cuda() for t in (x, z, w, dy)]
        poison()
        found = both(*gpu)
        for name, (a, b) in enumerate(zip(found, expected)):
            require(same(a, b), f"T={leading} D={hidden} {order}: output {name}")
        y, rstd, dx, dz, dw = found[:5]
        x, z, w, dy = gpu
        eps = float(torch.tensor(EPS))
        reference.check_gated(x, z, w, eps, order, groups, dy, y, rstd, dx, dz, dw)
    return f"{len(cases)} cases"


@check
def gradients_against_fp64():
    for leading, hidden, input_type, weight_type, residual, offset in PLAIN:
        x, r, w, dy, dh = to_gpu(operands(leading, hidden, input_type, weight_type, residual, 7))
        leaves = [None if t is None else t.requires_grad_() for t in (x, r, w)]
        outputs = rms_norm(x, w, EPS, r, weight_offset=offset)
        outputs = outputs if residual else (outputs,)
        torch.autograd.backward(outputs, (dy, dh) if residual else (dy,))
        normed = (outputs[1] if residual else x).detach()
        rstd = _launch.forward(normed, None, None, EPS, 0.0, True)[1]
        plain = [None if t is None else t.detach() for t in (normed, w)]
        eps = float(torch.tensor(EPS))
        dx, dw = x.grad, None if w is None else w.grad
        reference.check(*plain, offset, eps, dy, dh, outputs[0].detach(), rstd, dx, dw)
        require(not residual or same(r.grad, dx), "the residual's gradient")
    return f"{len(PLAIN)} cases"


@check
def graphs_replay_over_changing_inputs(replays=100):
    """Forward and backward in a graph of PyTorch's; each replay's bits against the CPU's."""
    shape = (257, 1024)
    w = random(1024, seed=1).cuda().requires_grad_()
    x, r = (torch.zeros(shape, dtype=BF16, device="cuda", requires_grad=True) for _ in range(2))
    dy, dh = (torch.zeros(shape, dtype=BF16, device="cuda") for _ in range(2))

    def step():
        y, h = rms_norm(x, w, EPS, r)
        return y, h, *torch.autograd.grad((y, h), (x, w), (dy, dh))

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = step()
    for replay in range(replays):
        inputs = [random(*shape, dtype=BF16, seed=100 * replay + i) for i in range(4)]
        with torch.no_grad():
            for tensor, values in zip((x, r, dy, dh), inputs):
                tensor.copy_(values)
            for output in outputs:
                output.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        cpu_x, cpu_r, cpu_dy, cpu_dh = inputs
        y, h, _, dx, dw, *_ = run(cpu_x, cpu_r, w.detach().cpu(), cpu_dy, cpu_dh, 0.0)
        for found, golden in zip(outputs, (y, h, dx, dw)):
            require(same(found, golden), f"replay {replay}")
    return f"{replays} replays"


@check
def two_streams_and_threads(rounds=100):
    """A thread and a stream each, at the same time, over inputs of their own."""
    results, failures = {}, []

    def work(number):
        try:
            inputs = operands((3000,), 2048, BF16, F32, True, 10 * number)
            gpu = to_gpu(inputs)
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.default_stream())
            kept = []
            with torch.cuda.stream(stream):
                for _ in range(rounds):
                    kept.append(run(*gpu, 0.0))
                    if len(kept) > 4:
                        del kept[1]
            stream.synchronize()
            results[number] = (inputs, kept)
        except Exception as error:
            failures.append(error)

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    require(not failures, str(failures))
    for inputs, kept in results.values():
        expected = run(*inputs, 0.0)
        for outputs in kept:
            require(all(map(same, outputs, expected)), "bits of a stream")
    return f"2 streams, {rounds} rounds each"


@check
def compiled_code_has_the_same_bits():
    norm = RMSNorm(1024, eps=EPS, device="cuda")
    torch.nn.init.normal_(norm.weight)

    def block(x, r):
        y, h = norm(torch.nn.functional.gelu(x), r)
        return y * 2, h

    found = []
    for function in (block, torch.compile(block, fullgraph=True, backend="aot_eager")):
        x, r = (random(64, 1024, dtype=BF16, seed=i).cuda().requires_grad_() for i in (1, 2))
        norm.weight.grad = None
        y, h = function(x, r)
        torch.autograd.backward((y, h), (random(64, 1024, dtype=BF16).cuda(),) * 2)
        found.append([y, h, x.grad, r.grad, norm.weight.grad])
    require(all(map(same, *found)), "eager and aot_eager")
    # Inductor's own gelu may round differently; the norm alone is the same.
    compiled = torch.compile(lambda x: rms_norm(x, norm.weight, EPS), fullgraph=True)
    x = random(64, 1024, dtype=BF16, seed=3).cuda()
    require(same(compiled(x), rms_norm(x, norm.weight, EPS)), "inductor")
    return "aot_eager, inductor"


@check
def nothing_else_is_allocated():
    """A forward allocates y, h and rstd; a backward dx, dw and the workspace."""
    x, r, w, dy, dh = to_gpu(operands((4096,), 4096, BF16, F32, True))
    run(x, r, w, dy, dh, 0.0)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    y, h, rstd = _launch.forward(x, r, w, EPS, 0.0, True)
    used = torch.cuda.max_memory_allocated() - before
    wanted = y.nbytes + h.nbytes + rstd.nbytes
    require(used <= wanted + 3 * 512, f"a forward allocates {used} bytes of {wanted}")
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    dx, dw = _launch.backward(dy, dh, h, w, rstd, EPS, 0.0, True, True)
    op = _launch.operator(4096, _launch.DTYPES[BF16], _launch.DTYPES[F32], EPS, 0.0)
    workspace = op.workspace_bytes(0, 4096, True)
    used = torch.cuda.max_memory_allocated() - before
    wanted = dx.nbytes + dw.nbytes + workspace
    require(used <= wanted + 3 * (2 << 20), f"a backward allocates {used} bytes of {wanted}")
    return f"workspace {workspace} bytes"


class Block(torch.nn.Module):
    """Attention and a feed-forward part, each behind a norm; the sum with the residual is the
    norm's."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.first, self.second = RMSNorm(width, eps=EPS), RMSNorm(width, eps=EPS)
        self.query_norm = RMSNorm(width // heads, eps=EPS, zero_centered=True)
        self.qkv = torch.nn.Linear(width, 3 * width, bias=False)
        self.out = torch.nn.Linear(width, width, bias=False)
        self.up = torch.nn.Linear(width, 4 * width, bias=False)
        self.down = torch.nn.Linear(4 * width, width, bias=False)

    def forward(self, x, residual):
        y, residual = self.first(x, residual)
        batch, length, width = y.shape
        q, k, v = self.qkv(y).unflatten(-1, (3, self.heads, width // self.heads)).unbind(2)
        # Heads inside the buffer of queries, keys and values: read in place.
        q, k = self.query_norm(q), self.query_norm(k)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        scores = (q @ k.transpose(-1, -2)).float() * (width // self.heads) ** -0.5
        causal = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        weights = scores.masked_fill(~causal, float("-inf")).softmax(-1).to(v.dtype)
        x = self.out((weights @ v).transpose(1, 2).flatten(-2))
        y, residual = self.second(x, residual)
        return self.down(torch.nn.functional.silu(self.up(y))), residual


class Transformer(torch.nn.Module):
    def __init__(self, tokens=64, width=256, heads=4, layers=2):
        super().__init__()
        self.embedding = torch.nn.Embedding(tokens, width)
        self.blocks = torch.nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = RMSNorm(width, eps=EPS)
        self.head = torch.nn.Linear(width, tokens, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens).bfloat16()
        residual = torch.zeros_like(x)
        for block in self.blocks:
            x, residual = block(x, residual)
        return self.head(self.norm(x, residual)[0])


def train(steps):
    torch.manual_seed(11)
    model = Transformer().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    # Sequences that count upwards from anywhere, by 1 to 4.
    generator = torch.Generator().manual_seed(5)
    losses = []
    for _ in range(steps):
        start = torch.randint(64, (16, 1), generator=generator)
        pace = torch.randint(1, 5, (16, 1), generator=generator)
        tokens = ((start + pace * torch.arange(65)) % 64).cuda()
        with torch.autocast("cuda", dtype=BF16):
            logits = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).cpu(), [p.detach().cpu() for p in model.parameters()]


@check
def training_ends_in_the_same_weights(steps=200):
    torch.use_deterministic_algorithms(True)
    try:
        (losses, weights), (again, others) = train(steps), train(steps)
    finally:
        torch.use_deterministic_algorithms(False)
    require(same(losses, again), "losses of two runs")
    require(all(map(same, weights, others)), "weights of two runs")
    first, last = losses[0].item(), losses[-10:].mean().item()
    require(last < 0.7 * first, f"the loss goes from {first} to {last}")
    count = sum(w.numel() for w in weights)
    return f"{steps} steps, {count} weights, loss {first:.2f} to {last:.2f}"


@check
def host_time_of_a_call(calls=2000):
    """For information: microseconds of the host a call, launches queued and not waited for."""
    x, w = random(32, 4096, dtype=BF16).cuda(), random(4096, dtype=BF16).cuda()
    found = {}
    for name, norm in {
        "cake": lambda x, w: rms_norm(x, w, EPS),
        "torch": lambda x, w: torch.nn.functional.rms_norm(x, (4096,), w, EPS),
    }.items():
        for mode in ("forward", "forward and backward"):
            grads = mode != "forward"
            leaves = [t.clone().requires_grad_(grads) for t in (x, w)]

            def step():
                y = norm(*leaves)
                if grads:
                    torch.autograd.grad(y, leaves, y.detach())

            for _ in range(20):
                step()
            torch.cuda.synchronize()
            best = float("inf")
            for _ in range(10):
                start = time.perf_counter()
                for _ in range(calls // 10):
                    step()
                best = min(best, (time.perf_counter() - start) / (calls // 10))
                torch.cuda.synchronize()
            found[f"{name} {mode}"] = round(best * 1e6, 1)
    return ", ".join(f"{name} {value} us" for name, value in found.items())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", help="where to write the results")
    parser.add_argument("--only", help="checks whose names contain this")
    options = parser.parse_args()
    results = []
    for function in CHECKS:
        name = function.__name__
        if options.only and options.only not in name:
            continue
        start = time.perf_counter()
        try:
            passed, detail = True, function()
            torch.cuda.synchronize()
        except Exception as error:
            traceback.print_exc()
            passed, detail = False, f"{type(error).__name__}: {error}"
        seconds = round(time.perf_counter() - start, 2)
        results.append({"check": name, "passed": passed, "detail": detail, "seconds": seconds})
        print(f"{'ok  ' if passed else 'FAIL'} {name}: {detail} ({seconds} s)", flush=True)
    failed = sum(not result["passed"] for result in results)
    print(f"{len(results) - failed} passed, {failed} failed")
    if options.json:
        facts = {
            "gpu": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "checks": results,
        }
        pathlib.Path(options.json).write_text(json.dumps(facts, indent=2) + "\n")
    return 1 if failed or not results else 0


if __name__ == "__main__":
    sys.exit(main())

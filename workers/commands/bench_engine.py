"""Engine throughput on a workload of token ids, beside other engines.

All requests are submitted at once and run through the parts of `serve`: ingress, staging thread, scheduler, engine
thread, sampler, detokeniser; only Kafka is left out. Each engine is loaded in a process of its own, and they take
turns, --repeats times. Greedy, end tokens ignored, so all write the same number of tokens; in float32 they should write
the same tokens, and the table says of how many requests they do. Peers: without-guesses (our own engine without
speculation), transformers (static `generate`, batches of 16), transformers-continuous (its continuous batching),
llama.cpp (its server, for a GGUF model), vllm (vLLM's CPU build) and vllm-guesses (the same with its prompt lookup);
the last three in environments of their own, which --install-peers makes.

--profile shows instead where a step's time goes, against what this machine's memory and processor can do.

--fit measures instead what a step takes on this machine, and writes it for `headrace simulate --step-time linear:FILE`.
"""

import argparse
import json
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from workers.bench.engine_figures import engine_figures, engine_table
from workers.bench.engine_peers import ENGINES, PeerError, install_peer, is_installed, loaded_engine
from workers.cli import CommandFailedError, UsageError

if TYPE_CHECKING:
    from workers.models.loaded_model import LoadedModel

__all__ = ["add_arguments", "run"]

_FIT_S = 20.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--workload", type=Path, metavar="FILE", help="JSON {requests: [{prompt_token_ids, max_tokens}]}"
    )
    parser.add_argument("--mix", default="mixed", help="without --workload: mixed, prefill, decode, chat (mixed)")
    parser.add_argument("--requests", type=int, metavar="N", help="only the first N of it (all)")
    parser.add_argument("--model", default="smollm2", metavar="SOURCE", help="as in serve (smollm2)")
    parser.add_argument("--dtypes", default="auto", metavar="D,D", help="number formats to run (auto)")
    parser.add_argument("--peers", default="transformers", metavar="P,P", help="see above (transformers)")
    parser.add_argument("--install-peers", action="store_true", help="install those that are not here: gigabytes")
    parser.add_argument("--repeats", type=int, default=1, metavar="N", help="pairs of runs; medians are reported (1)")
    parser.add_argument("--no-speculation", action="store_true", help="our engine guesses no tokens ahead")
    parser.add_argument("--profile", action="store_true", help="where a step's time goes")
    parser.add_argument("--fit", action="store_true", help="measure the step-time model of the simulator")
    parser.add_argument("--out", type=Path, default=Path("out/bench-engine.json"), help="(out/bench-engine.json)")
    parser.add_argument("--json", action="store_true", help="print the JSON too")


def run(arguments: argparse.Namespace) -> int:
    from workers.bench.record import bench_record, write_record
    from workers.bench.workload import CHAT, MIXES, chat_workload, make_workload
    from workers.models.devices import choose_placement
    from workers.models.model_source import SourceKind, find_model, prepare_model
    from workers.runners.errors import ModelError

    console = Console(stderr=True)
    if arguments.fit:
        return _fit(arguments, console)
    if arguments.profile:
        return _profile(arguments, console)
    if arguments.workload is not None and not arguments.workload.is_file():
        raise UsageError(f"--workload {arguments.workload}: no such file")
    if not Path("benchmarks/transformers_peer.py").is_file():
        raise UsageError("the peers are in the repository's benchmarks/ folder: run this from its root")
    if arguments.mix not in (*MIXES, CHAT):
        raise UsageError(f"--mix {arguments.mix}: unknown; there are {', '.join((*MIXES, CHAT))}")
    try:
        source = find_model(arguments.model)
        folder = prepare_model(source, console.print).folder
    except ModelError as error:
        raise UsageError(str(error)) from error
    engines = ["headrace", *_peers(arguments, source.kind is SourceKind.GGUF, console)]
    ours = ["--no-speculation"] if arguments.no_speculation else []
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as scratch:
        workload = arguments.workload
        if workload is None:
            workload = Path(scratch) / "workload.json"
            made = chat_workload(folder) if arguments.mix == CHAT else make_workload(folder, MIXES[arguments.mix])
            workload.write_text(json.dumps(made), encoding="utf-8")
        for asked in arguments.dtypes.split(","):
            # `auto` means something else to each engine.
            dtype = str(choose_placement("cpu", asked).dtype).removeprefix("torch.") if asked == "auto" else asked
            options = ["--workload", str(workload), "--dtype", dtype]
            if arguments.requests is not None:
                options += ["--requests", str(arguments.requests)]
            models = {name: source.location if ENGINES[name].reads_gguf else str(folder) for name in engines}
            try:
                runs += _take_turns(models, options, ours, dtype, arguments.repeats, console)
            except PeerError as error:
                raise CommandFailedError(str(error)) from error
    figures = engine_figures(runs, engines)
    record = bench_record(figures, runs)
    write_record(record, arguments.out)
    console.print(engine_table(figures, engines))
    console.print(f"written to {arguments.out}")
    if arguments.json:
        print(json.dumps(record))
    return 0


def _fit(arguments: argparse.Namespace, console: Console) -> int:
    """The coefficients of a linear step-time model of this machine, model and number format."""
    from workers.bench.record import bench_record, write_record
    from workers.models.warm_up import measure_step_time

    model, _threads = _load(arguments, console)
    console.print(f"measuring steps for about {_FIT_S:g} s …")
    fitted = measure_step_time(model.runner, budget_s=_FIT_S)
    record = bench_record({"step_time": asdict(fitted)}, [])
    write_record(record, arguments.out)
    console.print(
        f"a step takes {fitted.fixed_s * 1e3:.2f} ms + {fitted.per_prefill_token_s * 1e3:.3f} ms a prompt token + "
        f"{fitted.per_decode_sequence_s * 1e3:.3f} ms a sequence + {fitted.per_context_token_s * 1e6:.2f} µs a token "
        f"of context; written to {arguments.out}: headrace simulate … --step-time linear:{arguments.out}"
    )
    if arguments.json:
        print(json.dumps(record))
    return 0


def _profile(arguments: argparse.Namespace, console: Console) -> int:
    from workers.bench.record import bench_record, write_record
    from workers.bench.step import profile_steps, profile_table
    from workers.runners.decoder.runner import DecoderRunner
    from workers.runners.native.build import NoLibrary
    from workers.runners.native.library import load_library

    model, threads = _load(arguments, console)
    runner, library = model.runner, load_library()
    native = runner.native if isinstance(runner, DecoderRunner) else None
    if native is None or isinstance(library, NoLibrary):
        raise UsageError(f"--profile --model {arguments.model}: the compiled kernels don't serve it here")
    assert isinstance(runner, DecoderRunner)
    limits, profiles = profile_steps(runner, native, library, threads=threads, rounds=max(arguments.repeats, 1))
    record = bench_record({"limits": asdict(limits), "steps": [asdict(profile) for profile in profiles]}, [])
    write_record(record, arguments.out)
    console.print(profile_table(limits, profiles))
    console.print(f"written to {arguments.out}")
    if arguments.json:
        print(json.dumps(record))
    return 0


def _load(arguments: argparse.Namespace, console: Console) -> "tuple[LoadedModel, int]":
    """The model in the one format asked for, and the threads it computes with."""
    from workers.configuration.config import load_config
    from workers.models.devices import available_threads
    from workers.models.loaded_model import load_model
    from workers.runners.errors import ModelError

    dtype, *others = arguments.dtypes.split(",")
    if others:
        raise UsageError(f"--dtypes {arguments.dtypes}: one number format at a time for --fit and --profile")
    config = load_config({"model": {"source": arguments.model}, "engine": {"dtype": dtype}})
    try:
        return load_model(config.model, config.engine, config.kv, console.print), available_threads()
    except ModelError as error:
        raise UsageError(str(error)) from error


def _peers(arguments: argparse.Namespace, has_gguf: bool, console: Console) -> list[str]:
    """The peers asked for, all of them installed."""
    from workers.bench.workload import CHAT

    names = [name for name in arguments.peers.split(",") if name]
    chats = arguments.workload is None and arguments.mix == CHAT
    for name in names:
        if name not in ENGINES or name == "headrace":
            known = ", ".join(engine for engine in ENGINES if engine != "headrace")
            raise UsageError(f"--peers {name}: unknown; the peers are {known}")
        if chats and not ENGINES[name].to_end_token:
            able = ", ".join(engine for engine in ENGINES if engine != "headrace" and ENGINES[engine].to_end_token)
            raise UsageError(f"--mix chat goes on to the end tokens, which --peers {name} doesn't: {able} do")
        if ENGINES[name].reads_gguf and not has_gguf:
            raise UsageError(f"--model {arguments.model}: the peer {name} reads GGUF files: name one")
        if not is_installed(name) and not arguments.install_peers:
            raise UsageError(f"the peer {name} is not installed: add --install-peers, which downloads gigabytes")
        try:
            install_peer(name, console.print)
        except PeerError as error:
            raise CommandFailedError(str(error)) from error
    return names


def _take_turns(
    models: dict[str, str], options: list[str], ours: list[str], dtype: str, repeats: int, console: Console
) -> list[dict[str, Any]]:
    """All engines (`models`: what each one loads) loaded at once: ours, peer, peer, ours, peer, peer …

    `ours`: options that only our engine has. Each run says of how many requests it wrote the tokens that we wrote
    first. Raises `PeerError`.
    """
    runs: list[dict[str, Any]] = []
    expected: list[list[int]] | None = None
    with ExitStack() as stack:
        loaded = []
        for name, model in models.items():
            console.print(f"loading {name}, {dtype} …")
            loaded.append(
                stack.enter_context(
                    loaded_engine(name, ["--model", model, *options, *(ours if name == "headrace" else [])])
                )
            )
        for repeat in range(repeats):
            for engine in loaded:
                console.print(f"{engine.name}, {dtype}, run {repeat + 1} of {repeats} …")
                run = engine.run()
                outputs = run.pop("outputs")
                expected = outputs if expected is None else expected
                same = sum(mine == theirs for mine, theirs in zip(expected, outputs, strict=True))
                runs.append(
                    {"engine": engine.name, "dtype": dtype, "requests": len(outputs), "same_outputs": same} | run
                )
    return runs

"""python -m dosa: info, judge and analyze."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import dosa


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        print(f"\r  row {done} of {total}", end=end, file=sys.stderr, flush=True)


def _rows(text: str, rows: int) -> list[int]:
    """Rows as `dosa select --rows` writes them: 5, 0:16 (16 is not included), 0:512:16, or a list 3,7,20:24."""
    picked: list[int] = []
    try:
        for part in text.split(","):
            ends = [int(word) for word in part.split(":")]
            part_rows = range(*ends) if len(ends) > 1 else ends
            if len(part_rows) > rows:  # before a list of them is made
                raise ValueError
            picked.extend(part_rows)
    except (ValueError, TypeError, OverflowError) as error:
        raise dosa.BadInputError(
            f"rows: found {text!r}, wanted rows below {rows}, such as 5, 0:16, 0:512:16 or 3,7,20:24"
        ) from error
    if any(not 0 <= row < rows for row in picked):
        raise dosa.BadInputError(f"rows: found {text!r}, wanted rows below {rows}")
    return picked


def _info(_: argparse.Namespace) -> int:
    info = dosa.info()
    print(f"dosa {info.version}, {info.processor}, {info.threads} threads")
    width = max(map(len, [*info.backends, *info.isas]))
    for kind, entries in (("backend", info.backends), ("instruction set", info.isas)):
        for word, (available, why) in entries.items():
            print(f"  {kind:<15} {word:<{width}} {'yes' if available else 'no ':<3} {why}")
    print(f"  chosen: {info.isa_why}")
    return 0


def _judge(arguments: argparse.Namespace) -> int:
    from ._safetensors import read_tensors

    trace_file, selection_file = arguments.files
    tensors, metadata = read_tensors(selection_file)
    if "indices" not in tensors and "indices" in (swapped := read_tensors(trace_file))[0]:
        trace_file, selection_file = selection_file, trace_file
        tensors, metadata = swapped
    if "indices" not in tensors:
        raise dosa.BadInputError(f"{selection_file}: found no tensor \"indices\", wanted int32 [Q, K] (and \"lengths\" [Q])")
    trace = dosa.trace.read(trace_file)
    if metadata.get("rows"):
        trace = trace.rows(_rows(metadata["rows"], trace.q.shape[0]))

    def asked(option: str, fallback: str | None = None) -> str | None:
        value = getattr(arguments, option)
        return str(value) if value is not None else metadata.get(option, fallback)

    def number(option: str) -> int | None:
        text = asked(option)
        try:
            return None if text is None else int(text)
        except ValueError as error:
            raise dosa.BadInputError(f"{selection_file}: {option}: found {text!r}, wanted an integer") from error

    verdict = dosa.judge(
        tensors["indices"], tensors.get("lengths"), *trace.arrays, top_k=number("top_k"),
        model=asked("model", "f64"), index_base=asked("index_base", "absolute"),  # type: ignore[arg-type]
        always_first=number("always_first") or 0, always_last=number("always_last") or 0,
        progress=_progress,
    )  # fmt: skip
    print(verdict.summary())
    return {"exact": 0, "ties": 0, "wrong": 1}[verdict.verdict]


def _analyze(arguments: argparse.Namespace) -> int:
    from ._analyze import analyze
    from ._report import check_report, write_report

    if arguments.html:
        check_report(arguments.html)
    results = []
    for path in arguments.traces:
        if sys.stderr.isatty():
            print(f"{path}", file=sys.stderr)
        results.append(analyze(path, top_k=arguments.top_k, rows=arguments.rows, progress=_progress))
        print(results[-1].summary())
    if arguments.html:
        write_report(arguments.html, results)
        print(f"report: {arguments.html}")
    return 0


def main(words: Sequence[str] | None = None) -> int:
    """Runs a command; 0: fine, 1: the judge says wrong, 2: an error."""
    parser = argparse.ArgumentParser(prog="python -m dosa", description="Exact Top-K of the lightning indexer")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("info", help="what this build and this machine offer")
    command.set_defaults(run=_info)
    command = commands.add_parser("judge", help="is a selection right for a trace: exactly, up to ties, or wrong")
    command.add_argument("files", nargs=2, metavar="FILE", help="a trace, and a selection (indices, lengths), .safetensors")
    command.add_argument("--top-k", type=int, help="K (default: the selection's metadata, else its width)")
    command.add_argument("--model", choices=["f64", "sm90"])
    command.add_argument("--index-base", choices=["absolute", "window"])
    command.add_argument("--always-first", type=int)
    command.add_argument("--always-last", type=int)
    command.set_defaults(run=_judge)
    command = commands.add_parser("analyze", help="how well a certificate does on traces, and what approximations lose")
    command.add_argument("traces", nargs="+", metavar="TRACE")
    command.add_argument("--html", help="write a self-contained page (needs Plotly: pip install 'dosa-indexer[report]')")
    command.add_argument("--top-k", type=int, default=2048)
    command.add_argument("--rows", type=int, default=12, help="sampled rows of each trace (default 12)")
    command.set_defaults(run=_analyze)
    arguments = parser.parse_args(words)
    try:
        return int(arguments.run(arguments))
    except (dosa.Error, MemoryError) as error:  # 1 is the judge's verdict, which an error must not look like
        print(f"dosa: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())

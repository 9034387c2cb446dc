"""The verbs that show what is there: ``cache`` its contents, ``explain`` a message, and ``doctor`` an installation."""

from __future__ import annotations

import os
import sys
import time
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rtcompile import cache
from rtcompile.checkup import examine, explain, verdict
from rtcompile.checkup.checks import Check
from rtcompile.cli import output
from rtcompile.cli.output import requests
from rtcompile.errors import InvalidRequest
from rtcompile.messages.catalogue import MESSAGES
from rtcompile.messages.rendering import render
from rtcompile.store import inventory
from rtcompile.store.store import Store
from rtcompile.styling import filled, painted

# --- ``rtcompile cache`` ----------------------------------------------------------------------------

_SHOWN_KEY = 16
_Result = tuple[dict[str, Any], str]


def run_cache(given: Namespace) -> int:
    """Run an action of ``cache``; exit with 1 if the result has an ``ok`` that is false."""
    fields, text = _ACTIONS[given.action](given, cache.opened()[1])
    output.print_result(given, fields, text)
    return 0 if fields.get("ok", True) else 1


def _prune(given: Namespace, _: Store) -> _Result:
    freed = cache.prune(given.size)
    return {"freed": freed}, f"{output.human_size(freed)} freed"


def _clear(*_: object) -> _Result:
    gone = cache.clear()
    return {"directory": gone.directory, "removed": asdict(gone)}, (
        f"{gone.entries} builds and {gone.precompiled_headers} precompiled headers removed, "
        f"{output.human_size(gone.size)}; {gone.directory} contains only reproducers now"
    )


_COUNTS = ("hits", "misses", "bytes_read", "seconds_waited", "seconds_saved")


def _info(_: Namespace, store: Store) -> _Result:
    found = cache.info()
    # The costs and savings of shared stores for this machine's processes.
    stores = usage.stores if (usage := store.usage()) else {}
    levels = {name: {**dict.fromkeys(_COUNTS, 0.0), **counts} for name, counts in stores.items()}
    fields: dict[str, Any] = {**asdict(found), "levels": levels}
    sizes = (found.size, found.limit, found.precompiled_bytes)
    size, limit, headers = map(output.human_size, sizes)
    lines = [
        f"{found.directory}: {found.entries} entries",
        f"{size} of {limit}; {found.hits} hits, {found.misses} builds",
        f"{found.failures} failed builds remembered",
    ]
    if found.fetched:
        lines.append(f"{found.fetched} builds fetched from shared stores")
    if found.precompiled_headers:
        lines.append(f"{found.precompiled_headers} precompiled headers, {headers}")
    for name, counts in levels.items():
        lines.append(
            f"{name}: {counts['hits']:.0f} hits, {counts['misses']:.0f} misses, "
            f"{counts['bytes_read'] / 1e6:.1f} MB read, waited {counts['seconds_waited']:.1f} s, "
            f"saved {counts['seconds_saved']:.1f} s"
        )
    return fields, "\n".join(lines)


def _list(_: Namespace, store: Store) -> _Result:
    rows, found = [], sorted(store.entries(), key=lambda entry: entry.used, reverse=True)
    for each in found:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(each.used))
        key, size = each.key[:_SHOWN_KEY], output.human_size(each.size)
        rows.append((key, each.name, each.obj.arch, each.obj.kind, size, used))
    text = output.table(("key", "name", "arch", "kind", "size", "last use"), rows)
    return {"entries": [*map(_fields, found)]}, text


def find_entry(what: str) -> inventory.Entry:
    """Return the cache entry with this key, beginning of a key, or program's name; raise if it is not exactly one."""
    _, store = cache.opened()
    found = [entry for entry in store.entries() if entry.key.startswith(what) or entry.name == what]
    if len(found) == 1:
        return found[0]
    if not found:
        raise InvalidRequest(f"{what}: neither a file nor an entry of the cache")
    keys = ", ".join(f"{e.key[:_SHOWN_KEY]} ({e.name}, {e.obj.arch})" for e in found[:10])
    raise InvalidRequest(f"{what}: {len(found)} entries of the cache: {keys}; give a key")


def _fields(entry: inventory.Entry) -> dict[str, Any]:
    return {
        "key": entry.key,
        "name": entry.name,
        "arch": str(entry.obj.arch),
        "kind": entry.obj.kind,
        "size": entry.size,
        "used": entry.used,
        "backend": entry.obj.build.backend,
        "compiler": entry.obj.build.compiler,
        "lowered_names": dict(entry.obj.lowered_names),
        "key_inputs": dict(entry.key_inputs),
        "log": entry.obj.build.log,
    }


def _why_miss(given: Namespace, store: Store) -> _Result:
    """Return for each build why it is not cached; the result is ``ok`` if all are."""
    results = []
    for request in requests(given, given.file):
        why, plan = cache.why_of(request)
        arch = str(plan.choice.arch if plan else request.arch or "the device")
        result: dict[str, Any] = {"arch": arch, "hit": not why, "why": why}
        if why and plan:
            result["nearest"] = _nearest(plan.key_inputs.summary(), store)
        results.append(result)
    text = "\n".join(_rendered(given.file, result) for result in results)
    is_cached = all(result["hit"] for result in results)
    return {"ok": is_cached, "file": given.file, "results": results}, text


def _nearest(fields: Mapping[str, str], store: Store) -> dict[str, Any] | None:
    """Return the most similar entry and the fields that differ; None in an empty cache."""

    def differences(entry: inventory.Entry) -> dict[str, dict[str, str]]:
        was = entry.key_inputs
        pairs = {
            label: {"was": was.get(label, ""), "is": fields.get(label, "")}
            for label in sorted({*fields, *was})
        }
        return {label: pair for label, pair in pairs.items() if pair["was"] != pair["is"]}

    candidates = [(differences(entry), entry) for entry in store.entries() if entry.key_inputs]
    if not candidates:
        return None
    different, entry = min(candidates, key=lambda found: (len(found[0]), -found[1].used))
    compiler = entry.obj.build.compiler
    return {"key": entry.key, "name": entry.name, "compiler": compiler, "differences": different}


def _rendered(file: str, result: dict[str, Any]) -> str:
    lines = [f"{file} for {result['arch']}: {result['why'] or 'it is in the cache'}"]
    nearest = result.get("nearest")
    if nearest and nearest["differences"]:
        lines.append(f"  the nearest entry is {nearest['key'][:_SHOWN_KEY]} ({nearest['name']}):")
        for label, pair in nearest["differences"].items():
            was, now = (pair[side] or "(nothing)" for side in ("was", "is"))
            lines.append(f"    {label}: that entry has {was}, this build {now}")
    return "\n".join(lines)


_ACTIONS = {"info": _info, "list": _list, "why-miss": _why_miss, "prune": _prune, "clear": _clear}


# --- ``rtcompile explain`` --------------------------------------------------------------------------

_MOST_BYTES = 64 << 20  # bytes read of a log; diagnostics.parse looks at both its ends only


def run_explain(given: Namespace) -> int:
    """Print what is known about the messages; exit with 1 if nothing is."""
    row = next((known for known in MESSAGES if known.id == given.what), None)
    if row is not None:
        text = f"{row.id}: {row.pattern.pattern}\n{row.cause}\n{row.fix}\nSeen since {row.since}."
        fields = {"id": row.id, "pattern": row.pattern.pattern, "cause": row.cause, "fix": row.fix}
        output.print_result(given, fields, text)
        return 0
    text = _text(given.what)
    if not text.strip():
        raise InvalidRequest("nothing to explain: give a message, a file, or a log on stdin")
    found = explain(text, arch=given.arch)
    explained = any(diagnostic.hint for diagnostic in found)
    if given.json:
        output.print_json({"ok": explained, "diagnostics": [asdict(d) for d in found]})
    else:
        width = output.terminal_width(sys.stdout, 100)
        print(painted(render(found, width=width), output.uses_color(sys.stdout)))
        if not explained:
            print("  Nothing is known about it; `rtcompile doctor` checks the installation.")
    return 0 if explained else 1


def _text(what: str | None) -> str:
    if what is None:
        if sys.stdin.isatty():
            print("paste a log or a traceback; Ctrl-D ends it", file=sys.stderr, flush=True)
        return sys.stdin.buffer.read(_MOST_BYTES).decode("utf-8", "replace")
    if os.path.isfile(what):
        with open(what, "rb") as file:
            return file.read(_MOST_BYTES).decode("utf-8", "replace")
    return what


# --- ``rtcompile doctor`` -------------------------------------------------------------------------

_CHECK_MARKS = {"ok": "✓", "note": "·", "warning": "!", "error": "✗"}
_WIDTH = 100  # where there is no terminal
_SUMMARY = {0: "All is well.", 1: "Something is worth a look.", 2: "Something does not work."}


def doctor(given: Namespace) -> int:
    """Print each check when it is done; return the verdict as exit code."""
    color = output.uses_color(sys.stdout)
    width = output.terminal_width(sys.stdout, _WIDTH)
    done: list[Check] = []
    for check in examine(probes=not given.no_probes):
        done.append(check)
        if not given.json:
            print(_check_lines(check, color, width), flush=True)
    code = verdict(done)
    if given.json:
        output.print_json({"ok": code == 0, "verdict": code, "checks": [asdict(c) for c in done]})
    else:
        print(painted([("location", _SUMMARY[code])], color))
    return code


def _check_lines(check: Check, color: bool, width: int) -> str:
    """Return a check's lines: the mark, the name and the detail, and below them what to do."""
    mark = painted([(check.status, _CHECK_MARKS[check.status])], color)
    text = filled(f"{check.name}: {check.detail}", width - 2, "", "    ")
    hint = "\n" + filled(f"→ {check.hint}", width, "    ", "      ") if check.hint else ""
    return f"{mark} {text}{hint}"

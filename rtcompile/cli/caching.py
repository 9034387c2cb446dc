"""``rtcompile cache`` and ``rtcompile why-miss``: the cache's contents, and why a build is missing."""

from __future__ import annotations

import os
import time
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rtcompile import cache
from rtcompile.cli import output
from rtcompile.cli.output import requests
from rtcompile.errors import InvalidRequest
from rtcompile.files import sealed
from rtcompile.inspect.report import report
from rtcompile.settings import Settings
from rtcompile.store.folder import Folder
from rtcompile.store.inventory import Entry
from rtcompile.store.store import Store

_SHOWN_KEY = 16


def run(given: Namespace) -> int:
    """Run an action of ``cache``; exits with 1 if the result has an ``ok`` that is false."""
    settings, store = cache.opened()
    match given.action:
        case "info":
            fields, text = _info(given, store)
        case "list":
            fields, text = _list(store)
        case "show":
            fields, text = _show(find_entry(given.key))
        case "prune":
            freed = cache.prune(given.size)
            fields, text = {"freed": freed}, f"{output.human_size(freed)} freed"
        case "clear":
            gone = cache.clear()
            fields = {"directory": gone.directory, "removed": gone.as_dict()}
            text = (
                f"{gone.entries} builds and {gone.precompiled_headers} precompiled headers removed, "
                f"{output.human_size(gone.size)}; {gone.directory} is empty but for its reproducers"
            )
        case "verify":
            damaged = store.verify()
            count = sum(1 for _ in store.entries())
            fields = {"ok": not damaged, "removed": damaged, "entries": count}
            text = "\n".join([*(f"removed {path}" for path in damaged), f"{count} entries verify"])
        case "export":
            count = store.export(given.path)
            fields = {"files": count, "directory": given.path}
            text = (
                f"{count} files copied to {given.path}; RTCOMPILE_CACHE_DIR={given.path} uses them"
            )
        case "key":
            fields, text = _key(given)
        case "metrics":
            fields, text = _metrics(given, store)
        case _:
            fields, text = _copy(given, settings, store)
    output.print_result(given, fields, text)
    return 0 if fields.get("ok", True) else 1


def find_entry(what: str) -> Entry:
    """Return the only cache entry of a key, of its beginning, or of a program's name."""
    store = Store.open(Settings.from_environ())
    found = [entry for entry in store.entries() if entry.key.startswith(what) or entry.name == what]
    if len(found) == 1:
        return found[0]
    if not found:
        raise InvalidRequest(f"{what}: neither a file nor an entry of the cache")
    keys = ", ".join(f"{e.key[:_SHOWN_KEY]} ({e.name}, {e.obj.arch})" for e in found[:10])
    raise InvalidRequest(f"{what}: {len(found)} entries of the cache: {keys}; give a key")


def _info(given: Namespace, store: Store) -> tuple[dict[str, Any], str]:
    found = cache.info()
    fields: dict[str, Any] = {**found.as_dict(), "levels": _counts(store)}
    if given.stats:
        from rtcompile.cli import copying

        fields["stores"] = copying.kept(copying.stores())
    size, limit, headers = map(
        output.human_size, (found.size, found.limit, found.precompiled_bytes)
    )
    lines = [
        f"{found.directory}: {found.entries} entries",
        f"{size} of {limit}; {found.hits} hits, {found.misses} builds",
        f"{found.failures} failures of compilers remembered",
    ]
    if found.fetched:
        lines.append(f"{found.fetched} builds fetched from shared stores")
    if found.precompiled_headers:
        lines.append(f"{found.precompiled_headers} precompiled headers, {headers}")
    for name, counts in fields["levels"].items():
        lines.append(
            f"{name}: {counts['hits']:.0f} hits, {counts['misses']:.0f} misses, "
            f"{counts['bytes_read'] / 1e6:.1f} MB read, waited {counts['seconds_waited']:.1f} s, "
            f"spared {counts['seconds_spared']:.1f} s"
        )
    for level in fields.get("stores", ()):
        contents = f"{level['builds']} builds, {output.human_size(level['size'])}"
        lines.append(f"{level['store']}: {level['problem'] or contents}")
    return fields, "\n".join(lines)


def _list(store: Store) -> tuple[dict[str, Any], str]:
    entries = sorted(store.entries(), key=lambda entry: entry.used, reverse=True)
    rows = [
        (
            entry.key[:_SHOWN_KEY],
            entry.name,
            str(entry.obj.arch),
            entry.obj.kind,
            output.human_size(entry.size),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used)),
        )
        for entry in entries
    ]
    text = output.table(("key", "name", "arch", "kind", "size", "last use"), rows)
    return {"entries": [_fields(entry) for entry in entries]}, text


def _show(entry: Entry) -> tuple[dict[str, Any], str]:
    kernels = report(entry.obj) if entry.obj.kind == "cubin" else None
    fields = {**_fields(entry), "log": entry.obj.build.log}
    fields["report"] = kernels and kernels.as_dict()
    lines = [entry.key, f"built by {entry.obj.build.backend} ({entry.obj.build.compiler})"]
    lines += [f"  {label}: {value}" for label, value in entry.key_inputs.items() if value]
    lines += [f"  {expression} is {name}" for expression, name in entry.obj.lowered_names.items()]
    if kernels is not None:
        lines += ["", str(kernels)]
    if entry.obj.build.log.strip():
        lines += ["", entry.obj.build.log.strip()]
    return fields, "\n".join(lines)


def _copy(given: Namespace, settings: Settings, store: Store) -> tuple[dict[str, Any], str]:
    from rtcompile.cli import copying

    if given.action == "pull" and given.records:
        return _pull_records(given)
    stores, folder = copying.stores(), Folder(settings.cache_dir)
    done = []
    if given.action in ("pull", "sync"):
        done += [("from", each) for each in copying.pull(stores, folder)]
        store.prune()  # within its limit again
    if given.action in ("push", "sync"):
        done += [("to", each) for each in copying.push(stores, folder)]
    lines = []
    for direction, each in done:
        there = f"{each['there']} there already"
        lines.append(f"{each['copied']} builds copied {direction} {each['store']}, {there}")
        lines += [f"  {each['problem']}"] * bool(each["problem"])
    fields = [{"direction": direction, **each} for direction, each in done]
    return {"ok": not any(each["problem"] for each in fields), "stores": fields}, "\n".join(lines)


def _pull_records(given: Namespace) -> tuple[dict[str, Any], str]:
    from rtcompile.build import portable
    from rtcompile.cli import copying
    from rtcompile.extras.record import recording, warming

    stores = copying.stores()
    came = there = missing = 0
    for path in given.records:
        with warming.requests(recording.read(path), tuple(given.arch or ())) as wanted:
            counts = portable.fetch(stores, [each.request for each in wanted])
        came, there, missing = came + counts[0], there + counts[1], missing + counts[2]
    problem = "; ".join(tier.problem for tier in stores.tiers if tier.problem)
    fields = {"fetched": came, "there": there, "missing": missing, "problem": problem}
    text = f"{came} builds fetched, {there} there already, {missing} that no store has"
    return {"ok": not problem, **fields}, f"{text}; {problem}" if problem else text


def _key(given: Namespace) -> tuple[dict[str, Any], str]:
    from rtcompile.store import envelope

    path = os.path.expanduser(given.path or os.environ.get("RTCOMPILE_REMOTE_KEY_FILE", ""))
    if not path:
        raise InvalidRequest("which file? Give one, or set RTCOMPILE_REMOTE_KEY_FILE")
    is_new = given.what == "new"
    if not is_new:
        keys = envelope.read_keys(path)
        given.pair = given.pair or keys[0].kind == "ed25519"
    if given.what != "show":
        private, public = envelope.new_key(pair=given.pair)
        for name, text, mode in ((path, private, 0o600), (f"{path}.pub", public, 0o644)):
            if text and is_new and os.path.lexists(name):
                raise InvalidRequest(
                    f"{name} exists; `rtcompile cache key rotate` replaces its key"
                )
            if text:
                before = Path(name).read_bytes() if os.path.exists(name) else b""
                sealed.publish(name, text + before, mode=mode)
        keys = envelope.read_keys(path)
    signs = [key is keys[0] and key.sign is not None for key in keys]
    shown = [
        {"kind": key.kind, "fingerprint": key.fingerprint, "signs": does}
        for key, does in zip(keys, signs, strict=True)
    ]
    lines = [f"{path}:"]
    for key, does in zip(keys, signs, strict=True):
        lines.append(f"  {key.fingerprint} {key.kind}, {'signs' if does else 'reads'}")
    if given.what == "rotate":
        lines.append(
            "Copy it to all nodes. Nodes that do not have the new key yet miss what it signed; once all "
            "entries of the old key are gone (RTCOMPILE_REMOTE_TTL), remove its line."
        )
    return {"file": path, "keys": shown}, "\n".join(lines)


_COUNTS = {
    "hits": "builds that a shared store had",
    "misses": "look-ups of builds that a shared store did not have",
    "written": "entries written",
    "refused": "entries that were not valid, and not used",
    "failures": "answers that were missing or wrong",
    "requests": "requests to the store",
    "pauses": "times that the store was left alone",
    "bytes_read": "bytes of entries read",
    "bytes_written": "bytes of entries written",
    "seconds_waited": "seconds in which builds waited for the store",
    "seconds_spared": "seconds of compiling that hits spared",
}


def _counts(store: Store) -> dict[str, dict[str, float]]:
    """Return what shared stores cost and spared the processes of this machine."""
    stores = usage.stores if (usage := store.usage()) else {}
    return {name: {**dict.fromkeys(_COUNTS, 0.0), **counts} for name, counts in stores.items()}


def _metrics(given: Namespace, store: Store) -> tuple[dict[str, Any], str]:
    """Return the counts of shared stores as OpenMetrics text."""
    if given.fleet:
        from rtcompile.cli import copying

        tiers = [tier for tier in copying.stores().tiers if hasattr(tier.store, "get_totals")]
        stores = {each.store.name: each.query("get_totals", waiting=False) or {} for each in tiers}
    else:
        stores = _counts(store)
    lines = []
    for name, meaning in _COUNTS.items():
        family = f"rtcompile_store_{name}"
        lines += [f"# TYPE {family} counter", f"# HELP {family} {meaning}"]
        for each, counts in sorted(stores.items()):
            label = each.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
            lines.append(f'{family}_total{{store="{label}"}} {counts.get(name, 0):g}')
    text = "\n".join([*lines, "# EOF"])
    if given.output:
        sealed.publish(given.output, f"{text}\n".encode(), mode=0o644)
        return {"file": given.output, "stores": stores}, f"{given.output} written"
    return {"stores": stores}, text


def _fields(entry: Entry) -> dict[str, Any]:
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
    }


def why_miss(given: Namespace) -> int:
    """Say why a build is not cached; exits with 1 if one is not."""
    store = cache.opened()[1]
    results = []
    for request in requests(given, given.file):
        why, plan = cache.why_of(request)
        arch = str(plan.choice.arch if plan else request.arch or "the device")
        result: dict[str, Any] = {"arch": arch, "hit": not why, "why": why}
        if why and plan:
            result["nearest"] = _nearest(plan.key_inputs.summary(), store)
        results.append(result)
    text = "\n".join(_rendered(given.file, result) for result in results)
    output.print_result(given, {"file": given.file, "results": results}, text)
    return 0 if all(result["hit"] for result in results) else 1


def _nearest(fields: Mapping[str, str], store: Store) -> dict[str, Any] | None:
    """Return the most similar entry and the fields that differ; None in an empty cache."""

    def differences(entry: Entry) -> dict[str, dict[str, str]]:
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
            lines.append(f"    {label}: it has {was}, this has {now}")
    return "\n".join(lines)

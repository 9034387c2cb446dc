"""A pytest plugin that runs cuda.core's own tests of its two caches with `ProgramCache` instead.

``pytest -p tests.cuda_core.as_theirs …/cuda_core/tests/test_program_cache*.py``, as `make test-cuda-core` does.
"""

import os
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import cuda.core.utils
import pytest

from rtcompile.extras.cuda_core import ProgramCache
from tests.documentation import ROOT, has


class _Replacing(ProgramCache):
    def __init__(self, folder: Any, max_size_bytes: int | None) -> None:
        if max_size_bytes is not None and max_size_bytes <= 0:
            raise ValueError("positive")
        given = {"RTCOMPILE_CACHE_DIR": str(folder)}
        if max_size_bytes is not None:
            given["RTCOMPILE_CACHE_SIZE"] = str(max_size_bytes)
        with mock.patch.dict(os.environ, given):
            super().__init__()


class FileStreamProgramCache(_Replacing):
    def __init__(self, path: Any, *, max_size_bytes: int | None = None) -> None:
        super().__init__(path, max_size_bytes)


class InMemoryProgramCache(_Replacing):
    def __init__(self, *, max_size_bytes: int | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory()
        super().__init__(self._folder.name, max_size_bytes)


def replace() -> None:
    for each in (FileStreamProgramCache, InMemoryProgramCache):
        setattr(cuda.core.utils, each.__name__, each)


# Deselected tests, by reason.
NOT_OURS = {
    "it looks into the class's own files or attributes": """
        replace_retries_on_sharing_violation unlink_retries_on_sharing_violation
        unlink_propagates_non_windows_permission_error overwrite_replaces_value atomic_no_half_written_file
        prune_only_if_stat_unchanged touch_atime returns_bytes_verbatim input_forms_are_byte_equivalent
        default_cache_dir_lives_under_user_cache_root uses_default_dir_when_path_omitted
        recreates_tmp_dir_if_missing sweeps_stale_tmp_files_on_open clear_preserves_young_tmp_files
        clear_does_not_unlink_replaced_file clear_does_not_break_concurrent_writer
        size_cap_does_not_unlink_replaced_file size_cap_counts_tmp_files writes_skip_scan_when_under_cap
        writes_trigger_scan_when_over_cap filestream_cache_tracker clear_with_cap_resets_tracker
        iter_entry_paths sum_tmp_sizes enforce_size_cap_noop overwrite_replaces_value_and_updates_size
        concurrent_threads_stay_consistent""",
    "a cache that can't be written warns, and fails no build": """
        eviction_propagates_non_sharing_permission_error eviction_propagates_windows_non_sharing_eacces
        permission_error_propagates_on_posix write_phase_permission_error_propagates_on_windows
        permission_error_windows_is_narrowed""",
    "a missing file is Python's own error": "path_backed_object_code_missing_file_message",
    "its limit is 250 bytes, and the digest of each of our files counts": """
        inmemory_cache_size_cap_evicts_oldest inmemory_cache_read_promotes_lru""",
}


def pytest_configure(config: pytest.Config) -> None:
    replace()
    config.addinivalue_line("markers", "thread_unsafe: as cuda.core's")
    # Processes that the tests spawn load no plugins.
    folder = tempfile.TemporaryDirectory()
    config.add_cleanup(folder.cleanup)
    text = f"from {__name__} import replace\n\nreplace()\n"
    (Path(folder.name) / "sitecustomize.py").write_text(text)
    paths = [folder.name, str(ROOT), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    names = [name for listed in NOT_OURS.values() for name in listed.split()]
    left_out = [item for item in items if any(name in item.name for name in names)]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


@pytest.fixture
def init_cuda() -> None:
    if not has("gpu"):
        pytest.skip("needs a CUDA device")
    cuda.core.Device().set_current()

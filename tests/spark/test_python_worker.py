"""A Python worker of Spark is set up once."""

import gc

import pytest

from holdfast.spark import python_worker


def test_a_worker_is_set_up_with_its_first_task_only(monkeypatch: pytest.MonkeyPatch):
    """It keeps memory that it freed, and what is loaded is not gone through after every task."""
    done: list[str] = []
    monkeypatch.setattr(python_worker, "_prepared_pids", set())
    monkeypatch.setattr(python_worker, "keep_freed_memory", lambda: done.append("memory"))
    monkeypatch.setattr(gc, "freeze", lambda: done.append("garbage"))

    python_worker.prepare_worker()
    python_worker.prepare_worker()

    assert done == ["memory", "garbage"]

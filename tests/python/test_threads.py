"""Calls from several threads at once, the GIL while the library works, and fork."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import dosa


def status_of(pid, child):
    """Exit status of a forked child; one that takes more than a minute hangs."""
    for _ in range(6000):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        time.sleep(0.01)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    pytest.fail(f"{child} hangs")


def test_threads_calling_at_once(call):
    calls = [call(rows=8, keys=3000, seed=s) for s in range(4)]
    wanted = [dosa.select(*c.arrays, top_k=100).indices.tobytes() for c in calls]
    plan = dosa.plan(rows=8, heads=8, head_dim=64, keys=3000, top_k=100)

    def work(n):
        workspace = plan.new_workspace()
        return [plan.run(*calls[n % 4].arrays, workspace=workspace).indices.tobytes() for _ in range(8)]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for n, results in enumerate(pool.map(work, range(8))):
            assert set(results) == {wanted[n % 4]}


def big(call):
    return call(rows=64, keys=60000, heads=32, head_dim=128)


def test_a_workspace_serves_one_call_at_a_time_and_the_gil_is_released(call):
    c = big(call)
    plan = dosa.plan_for(*c.arrays, top_k=2048, path="dense")
    workspace = plan.new_workspace()
    outcomes = []

    def work():
        try:
            plan.run(*c.arrays, workspace=workspace)
            outcomes.append("ran")
        except dosa.UsageError as error:
            assert "another call is using it" in str(error)
            outcomes.append("refused")

    # A second thread can only find the workspace in use where the first computes without the GIL.
    for _ in range(20):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if "refused" in outcomes:
            break
    assert set(outcomes) == {"ran", "refused"}
    assert plan.run(*c.arrays, workspace=workspace).stats.rows == 64


def _child(arrays, top_k, wanted, queue):
    queue.put([dosa.select(*arrays, top_k=top_k, threads=t).indices.tobytes() == wanted for t in (0, 1, 2, 4)])


@pytest.mark.skipif(sys.platform != "linux", reason="fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_computes_the_same(call):
    c = call(rows=40, keys=4000, seed=3)
    # The parent has used the pool, so its threads exist and the child inherits their state without them.
    wanted = dosa.select(*c.arrays, top_k=200).indices.tobytes()
    fork = multiprocessing.get_context("fork")
    for _ in range(3):
        queue = fork.Queue()
        child = fork.Process(target=_child, args=(c.arrays, 200, wanted, queue))
        child.start()
        try:
            assert queue.get(timeout=60) == [True] * 4
        finally:
            child.join(30)
            alive = child.is_alive()
            if alive:
                child.kill()
        assert not alive and child.exitcode == 0


@pytest.mark.skipif(sys.platform != "linux", reason="fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forks_right_after_a_call(call):
    # Workers going to sleep hold locks of the pool: a child that took them hung once in some hundred forks.
    c = call(rows=40, keys=4000, seed=3)
    table = dosa.scores(*c.arrays).tobytes()
    for number in range(60):
        wanted = dosa.select(*c.arrays, top_k=200, threads=(0, 2, 4)[number % 3]).indices.tobytes()
        pid = os.fork()
        if pid == 0:
            same = all(dosa.select(*c.arrays, top_k=200, threads=t).indices.tobytes() == wanted for t in (0, 1, 4))
            same = same and dosa.scores(*c.arrays).tobytes() == table
            alone = len(os.listdir("/proc/self/task")) == 1  # no worker was started either
            os._exit(0 if same and alone else 1)
        assert status_of(pid, f"child {number}") == 0


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork_while_other_threads_compute(call):
    c = big(call)
    stop = threading.Event()

    def work():
        while not stop.is_set():
            dosa.select(*c.arrays, top_k=2048)

    wanted = dosa.select(c.q[:2], *c.arrays[1:3], c.weights[:2], top_k=64).indices.tobytes()
    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(5):
            pid = os.fork()
            if pid == 0:
                found = dosa.select(c.q[:2], *c.arrays[1:3], c.weights[:2], top_k=64).indices.tobytes()
                os._exit(0 if found == wanted else 1)
            assert status_of(pid, "the child") == 0
    finally:
        stop.set()
        thread.join()


def test_import_brings_no_framework():
    code = "import sys, dosa; print([m for m in ('numpy', 'torch', 'jax', 'cupy', 'plotly') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_an_empty_problem(call):
    c = call(rows=0, keys=0)
    found = dosa.select(*c.arrays, top_k=4, return_scores=True)
    assert found.indices.shape == (0, 4) and found.lengths.shape == (0,) and found.scores.shape == (0, 4)
    assert np.asarray(dosa.scores(*c.arrays)).shape == (0, 0)

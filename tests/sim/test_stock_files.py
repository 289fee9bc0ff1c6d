"""What the library's own files do when a disk or a process fails (D2 to D5), and what ours do in the same place."""

import itertools
import signal
import subprocess
import sys

import pysyncobj.syncobj
import pytest
from pysyncobj import SyncObj, SyncObjConf, replicated
from pysyncobj.journal import FileJournal
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from oncegate.consensus.errors import Corrupt
from oncegate.consensus.log.storage import DirectoryStorage
from oncegate.consensus.log.wal import Journal
from oncegate.proof.sim.engine.fake_disk import InlineWorker


def stock_journal(path):
    """The library's journal file with entries 1 to 50, closed."""
    journal = FileJournal(str(path))
    for index in range(1, 51):
        journal.add(b"\0command %d" % index, index, 1)
    journal._destroy()


def our_journal(path):
    """Our journal with the same entries, each a flush of its own, closed."""
    path.mkdir()
    journal = Journal(DirectoryStorage(path), InlineWorker(), segment_bytes=1 << 14, memory_bytes_max=1 << 12)
    for index in range(1, 51):
        journal.append(b"\0command %d" % index, index, 1)
        journal.flush()
    journal.close()


def reopened(path):
    journal = FileJournal(str(path))
    entries = list(journal[0:])
    journal._destroy()
    return entries


def flip_first(path, needle):
    data = bytearray(path.read_bytes())
    data[data.index(needle)] ^= 1
    path.write_bytes(data)


# The library leaves the closing of its small files to the collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")


@pytest.fixture(autouse=True)
def fast_clock(monkeypatch):
    """The library's time-outs pass in a few ticks."""
    readings = itertools.count(0.0, 0.03)
    monkeypatch.setattr(pysyncobj.syncobj, "monotonicTime", lambda: next(readings))


class Silent(Transport):
    """Nobody is there."""

    def __init__(self):
        super().__init__(None, None, [])

    def send(self, node, message):
        return True


class Stock(SyncObj):
    """A node of its own cluster, with journal and dump in files."""

    def __init__(self, directory, *, dump=True):
        conf = SyncObjConf(
            autoTick=False,
            useFork=False,
            journalFile=str(directory / "journal"),
            fullDumpFile=str(directory / "dump") if dump else None,
            logCompactionMinTime=10**9,
        )
        super().__init__(Node("self"), [], conf=conf, transport=Silent())
        self.values = []

    @replicated
    def write(self, value):
        self.values.append(value)

    def ticks(self, count=30):
        for _ in range(count):
            self.doTick(0)


def compacted(directory, *, dump):
    """A node that led, applied nine writes, compacted its log, applied a tenth and stopped."""
    node = Stock(directory, dump=dump)
    node.ticks()
    for value in range(1, 10):
        node.write(value)
    node.ticks()
    node.forceLogCompaction()
    node.ticks()
    node.write(10)
    node.ticks()
    assert node.values == list(range(1, 11))
    node.destroy()


def test_d2_the_library_accepts_a_flipped_bit_and_ours_refuses(tmp_path):
    stock_journal(tmp_path / "stock")
    flip_first(tmp_path / "stock", b"command 20")
    commands = [command for command, _, _ in reopened(tmp_path / "stock")]
    assert len(commands) == 50
    assert b"\0command 20" not in commands

    our_journal(tmp_path / "ours")
    (segment,) = [path for path in (tmp_path / "ours").iterdir() if b"command 20" in path.read_bytes()]
    flip_first(segment, b"command 20")
    with pytest.raises(Corrupt):
        Journal(DirectoryStorage(tmp_path / "ours"), InlineWorker(), segment_bytes=1 << 14, memory_bytes_max=1 << 12)


KILLED_INSIDE_COMPACTION = """
import os, signal, sys
from pysyncobj.journal import FileJournal

journal = FileJournal(sys.argv[1])
left = int(sys.argv[2])
add = journal.add

def killed(*entry):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    add(*entry)

journal.add = killed
journal.deleteEntriesTo(10)
"""


@pytest.mark.parametrize("written", [0, 7])
def test_d3_a_kill_inside_the_librarys_compaction_loses_what_it_kept(tmp_path, written):
    stock_journal(tmp_path / "stock")
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_INSIDE_COMPACTION, str(tmp_path / "stock"), str(written)], check=False
    )
    assert killed.returncode == -signal.SIGKILL
    # 40 entries were to stay, each of them acknowledged perhaps.
    assert len(reopened(tmp_path / "stock")) == written


def test_d4_a_node_of_the_library_with_a_damaged_dump_leads_with_an_empty_state(tmp_path, caplog):
    compacted(tmp_path, dump=True)
    dump = bytearray((tmp_path / "dump").read_bytes())
    dump[len(dump) // 2] ^= 0xFF
    (tmp_path / "dump").write_bytes(dump)
    node = Stock(tmp_path)
    node.ticks()
    assert "failed to load full dump" in caplog.text
    assert node._isLeader()
    assert node.values == []
    node.destroy()


def test_d5_a_journal_without_a_dump_file_forgets_what_was_compacted(tmp_path):
    compacted(tmp_path, dump=False)
    node = Stock(tmp_path, dump=False)
    node.ticks()
    assert node._isLeader()
    assert not set(range(1, 9)) & set(node.values)
    node.destroy()


def test_the_same_node_with_a_sound_dump_keeps_everything(tmp_path):
    compacted(tmp_path, dump=True)
    node = Stock(tmp_path)
    node.ticks()
    assert node.values == list(range(1, 11))
    node.destroy()

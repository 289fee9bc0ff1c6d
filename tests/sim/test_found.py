"""What the simulator has found, each kept as the shortest history that shows it."""

from consensus.progress import Progress


def test_a_refusal_that_only_tells_the_term_moves_no_next_index():
    """A leader of term 2 gets the refusals of the appends it sent in term 1, which carry term 2 and no position."""
    progress = Progress(10, now=0)
    progress.refused(9, 0)
    assert (progress.next_index, progress.probe_sent) == (10, False)
    progress.refused(9, 5)
    assert progress.next_index == 5

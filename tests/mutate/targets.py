"""Which modules are mutated, and which tests have to notice: the only place that knows where they are."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
SURVIVORS: Final = ROOT / "tests" / "mutate" / "survivors.txt"
KILLED_PERCENT_MIN: Final = 95.0
"""Of all mutants, the listed ones counted as survivors."""

_DOCUMENTED: Final = "tests/gateway/test_limits.py::test_default_is_what_the_table_says"
_MODEL: Final = "tests/rifl/test_apply_rule_model.py"
TARGETS: Final[dict[str, tuple[str, ...]]] = {
    "rifl/completion.py": (
        "tests/rifl/test_ids.py",
        "tests/rifl/test_result_tracker.py",
        "tests/rifl/test_range_rule.py",
    ),
    "rifl/ids.py": ("tests/rifl/test_ids.py",),
    "rifl/key_buckets.py": ("tests/rifl/test_key_records.py", "tests/rifl/test_keys_kept.py"),
    "rifl/key_records.py": ("tests/rifl/test_key_records.py", "tests/rifl/test_keys_kept.py"),
    "rifl/key_table.py": ("tests/rifl/test_keys_kept.py", "tests/rifl/test_key_table.py"),
    "rifl/lease.py": ("tests/rifl/test_lease.py",),
    "rifl/range_rule.py": (
        "tests/rifl/test_range_rule.py",
        "tests/rifl/test_rule.py::test_range_is_decided_as_the_table_says_of_each_of_its_operations",
        "tests/rifl/test_rule.py::test_without_a_session_or_in_another_tenants_the_table_needs_no_records",
    ),
    "rifl/request_tracker.py": ("tests/rifl/test_request_tracker.py",),
    "rifl/resolve_rule.py": ("tests/rifl/test_resolve_rule.py",),
    "rifl/result_tracker.py": (
        "tests/rifl/test_result_tracker.py",
        "tests/rifl/test_range_rule.py",
        "tests/rifl/test_result_tracker_model.py",
        _MODEL,
    ),
    "rifl/rule.py": ("tests/rifl/test_result_tracker.py", "tests/rifl/test_rule.py", _MODEL),
    "rifl/session.py": ("tests/rifl/test_session.py", "tests/rifl/test_session_model.py"),
    "flows/batcher.py": ("tests/flows/test_batcher.py",),
    "flows/cursor.py": ("tests/flows/test_consumers.py", "tests/flows/test_cursor.py"),
    "gateway/machine/tables.py": (
        "tests/gateway/test_tables.py",
        "tests/gateway/test_table_rows.py",
        "tests/gateway/test_rows_that_end.py",
        _DOCUMENTED,
    ),
    "gateway/machine/rows.py": ("tests/gateway/test_tables.py", "tests/gateway/test_table_rows.py"),
    "gateway/machine/row_rule.py": (
        "tests/gateway/test_tables.py",
        "tests/gateway/test_table_rows.py",
        "tests/gateway/test_takes.py::test_a_list_that_begins_with_a_count_has_one_more_there",
        "tests/gateway/test_rows_that_end.py",
        _DOCUMENTED,
    ),
    **dict.fromkeys(
        (
            "gateway/machine/apply.py",
            "gateway/machine/effects.py",
            "gateway/machine/machine.py",
            "gateway/machine/operations.py",
            "gateway/machine/session_handlers.py",
        ),
        (
            "tests/gateway/test_joined_changes.py",
            "tests/gateway/test_look_ahead.py",
            "tests/gateway/test_machine.py",
            "tests/gateway/test_machine_requests.py",
            "tests/gateway/test_rows_that_end.py",
            "tests/gateway/test_cascades.py::test_parts_are_written_once_and_the_last_one_moves_the_cursor",
            "tests/gateway/test_dropped_tables.py::test_table_is_dropped_by_the_number_of_its_incarnation_and_no_other",
            "tests/gateway/test_put_runs.py",
            "tests/gateway/test_request_forms.py",
            "tests/gateway/test_machine_ranges.py",
        ),
    ),
    "gateway/machine/ordering.py": (
        "tests/gateway/test_cluster_clock.py",
        "tests/gateway/test_group_commit.py",
        "tests/gateway/test_put_runs.py",
    ),
    "gateway/machine/ending.py": (
        "tests/gateway/test_row_moves.py",
        "tests/gateway/test_rows_that_end.py",
        "tests/gateway/test_row_ends_model.py",
    ),
    "gateway/machine/row_ends.py": (
        "tests/gateway/test_row_ends_index.py",
        "tests/gateway/test_rows_that_end.py",
        _DOCUMENTED,
        "tests/gateway/test_row_ends_model.py",
    ),
    "gateway/machine/transactions.py": (
        "tests/gateway/test_transaction_effects.py",
        "tests/gateway/test_transactions.py",
        "tests/gateway/test_rows_that_end.py",
        "tests/gateway/test_transactions_model.py",
    ),
    "gateway/node/change_history.py": ("tests/gateway/test_history_bounds.py", "tests/gateway/test_change_history.py"),
    "gateway/node/watching.py": ("tests/gateway/test_watch_turns_model.py", "tests/gateway/test_change_history.py"),
    "gateway/backup/fence.py": ("tests/backup/test_fence.py",),
    "stores/claimed.py": ("tests/spark/test_claimed.py",),
    "gateway/client/recipes/line.py": (
        "tests/client/test_lines_in_memory.py",
        "tests/client/test_leaving_in_memory.py",
        "tests/client/test_queue_in_memory.py",
    ),
    "gateway/client/recipes/lock.py": ("tests/client/test_lines_in_memory.py",),
    "gateway/client/recipes/queue.py": (
        "tests/client/test_queue_in_memory.py",
        "tests/client/test_queue_items_in_memory.py",
    ),
    "gateway/http/admission/desk.py": (
        "tests/gateway/test_desk.py",
        "tests/gateway/test_usage.py",
        "tests/gateway/test_tokens_model.py",
        "tests/gateway/test_token_scopes.py",
    ),
    "gateway/http/hot/request.py": ("tests/gateway/test_hot_routes.py", "tests/gateway/test_hot_request_model.py"),
    "consensus/core/election.py": ("tests/consensus/test_transcripts.py", "tests/consensus/test_election_model.py"),
    "consensus/core/progress.py": ("tests/consensus/test_progress.py",),
    "consensus/core/replication.py": ("tests/consensus/test_replication_model.py",),
}
"""File -> tests, in the order in which they are run: the quickest first."""

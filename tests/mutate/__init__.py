"""Mutation testing of the replicated core: each small change of its code has to fail a test.

Read :mod:`tests.mutate.targets` first (which modules, which tests), then :mod:`tests.mutate.changes` (what is changed,
by mutmut), :mod:`tests.mutate.trial` (a changed module under its tests) and :mod:`tests.mutate.survivors` (the listed
changes that change nothing). ``make mutate`` runs all of it.
"""

"""Jobs: each a module that runs as a process of its own and under spark-submit."""

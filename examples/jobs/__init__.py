"""Jobs of docs/spark.md, each a program of its own."""

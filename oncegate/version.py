"""The version of this code, for whoever has to name it. The build reads it from here too: it stands nowhere else.

It travels with the code where there is no installation: to executors of Spark in a zip, to a node of another build.
"""

__version__ = "0.1.0"

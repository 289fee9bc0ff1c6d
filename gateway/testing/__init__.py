"""A cluster inside a test process, for the tests of applications."""

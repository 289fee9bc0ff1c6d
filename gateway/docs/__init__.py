"""The generated parts of the documentation: ``python -m oncegate.gateway.docs`` writes them, a test compares them."""

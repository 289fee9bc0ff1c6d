"""HTTP routes of API.md, one file a resource. They translate and check; :mod:`oncegate.gateway.node.node` acts."""

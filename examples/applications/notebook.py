"""Cells of a notebook: no ``await``, no ``with``; each cell builds on those before.

oncegate dev --nodes 3 &
python -m examples.applications.notebook
"""

# %% Connect: ~/.config/oncegate/profiles.toml, ONCEGATE_ENDPOINTS, or the node on this machine
from oncegate import sync

client = sync.Client()
client.declare_table("scores")
client.declare_table("readings", kind="stream")
session = client.session()

# %% Write: each line once, however often the cell's requests are repeated underneath
session.put("scores", "ann", 3)
print("ann has", session.increment("scores", "ann", 4).value)

# %% Many at once: one range
many = session.put_many("readings", {f"2026-01-{day:02}": {"celsius": day % 7} for day in range(1, 29)})
print("written:", many.last - many.first + 1)

# %% Look
print([(row.key, row.value) for row in client.scan("scores").rows])

# %% Done; the end of the interpreter would do the same
client.close()

"""The demo: a corpus that is drawn, not downloaded, and a report of what packing makes of it."""

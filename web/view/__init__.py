"""The viewer: runs, sweeps and folders of them as pages, live or exported to files."""

"""What `scripts/bench` measures: `stores` makes the sessions, `mounts` looks at them through turnfs, `rows` compares."""

"""What is told of builds: logs, traces, progress, reports."""

"""What is generated while the documentation is built."""

"""The places of files, and the check of who could have written them."""

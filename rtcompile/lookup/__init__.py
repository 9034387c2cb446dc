"""Looks up the code of a request, without planning its build."""

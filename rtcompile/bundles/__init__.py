"""Bundles: read-only files of builds that packages carry, searched before the cache."""

# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of dctffs: always a ratio against something named, measured in the same run."""

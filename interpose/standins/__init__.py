"""Stand-ins of GPU libraries that are not installed here: the same Python surface, made of priced operators.

`finder` serves them to `import`, `registry` lists them, `packages/` holds them as plain Python packages,
`operators` defines the fused kernels that PyTorch has none of, `surface` explains what is not covered.
docs/stand-ins.md is the user's side.
"""

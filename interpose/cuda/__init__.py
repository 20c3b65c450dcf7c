"""The `torch._C._cuda_*` names, by subject. Each module's `names(extension)` returns what to set on `torch._C`.

Every name is a function object of its own, with torch's names and keywords: Dynamo registers them one by one.
"""

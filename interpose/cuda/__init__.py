"""The `torch._C._cuda_*` names, by subject: `names(extension)` of each module gives what to set there.

Every name is a function object of its own, with torch's names and keywords: Dynamo registers them one by one.
"""

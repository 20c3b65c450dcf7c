"""The public names of the libraries that have a stand-in: one generated list per library and version.

`model` holds their types, `lists/*.json` the lists, `source_names` and `generate` make them from a library's
sources. A list holds names, parameters, base classes and simple constants; none of the library's code.
"""

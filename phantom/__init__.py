"""The central simulator and everything a user types. Imports nothing, so that `phantom.wire` stays cheap."""

package image

// ReadArchive lets the fuzzer read archives that are not files.
var ReadArchive = readArchive

// ParseAny parses every name in the general way, even the commonest ones.
var ParseAny = parseName

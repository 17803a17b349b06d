package image

// ReadArchive lets the fuzzer read archives that are no files.
var ReadArchive = readArchive

package image

import (
	"errors"
	"io"
)

// ReadArchive lets the fuzzer read archives that are not files.
var ReadArchive = readArchive

// TakeApart reads all parts of an image, as a push does before it sends them.
func TakeApart(what Content) error {
	parts, err := takeApart(what)
	if err != nil {
		return err
	}
	for _, b := range parts.blobs {
		from, err := b.open()
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, from)
		if err := errors.Join(err, from.Close()); err != nil {
			return err
		}
	}
	return nil
}

// ParseAny parses every name in the general way, even the commonest ones.
var ParseAny = parseName

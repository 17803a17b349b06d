package object

import (
	"encoding/hex"
	"fmt"

	"github.com/google/uuid"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
)

// nullVersion is the id of the version that was made while the bucket kept no versions.
const nullVersion = "null"

// newID returns 16 bytes. Later ids are greater, so that uploads of one key are listed in the order of their begin.
func newID() ([]byte, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return nil, fmt.Errorf("making an id: %w", err)
	}
	return id[:], nil
}

// VersionID is the id of a version as S3 writes it: "null" or 32 hexadecimal digits.
func VersionID(v *objectv1.Version) string {
	if v.GetNull() {
		return nullVersion
	}
	return hex.EncodeToString(v.GetId())
}

// UploadID is the id of an upload as S3 writes it: 32 hexadecimal digits.
func UploadID(u *objectv1.Upload) string { return hex.EncodeToString(u.GetId()) }

// versionBytes is the id of a version as names know it; empty for the current one.
func versionBytes(id string) ([]byte, error) {
	if id == "" || id == nullVersion {
		return []byte(id), nil
	}
	raw, err := hex.DecodeString(id)
	if err != nil || len(raw) != 16 {
		return nil, ErrNoVersion
	}
	return raw, nil
}

func uploadBytes(id string) ([]byte, error) {
	raw, err := hex.DecodeString(id)
	if err != nil || len(raw) != 16 {
		return nil, ErrNoUpload
	}
	return raw, nil
}

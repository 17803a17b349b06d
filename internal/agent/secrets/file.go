package secrets

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// The folders that belong to no replica. No uid begins with a dot.
const (
	valuesName = ".values"
	tempName   = ".tmp"
)

// The files in the folder of a replica.
const (
	stateName = "state"
	envName   = "env"
)

// uidPattern is what may become the name of a file or folder.
var uidPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,63}$`)

// longestFile is more than any file of this package has.
const longestFile = 16 << 20

// id names a version of a secret.
type id struct {
	uid     string
	version uint64
}

func (i id) fileName() string { return i.uid + "." + strconv.FormatUint(i.version, 10) }

// parseID reads the name of a file.
func parseID(name string) (id, error) {
	uid, number, _ := strings.Cut(name, ".")
	version, err := strconv.ParseUint(number, 10, 64)
	parsed := id{uid, version}
	if err != nil || !uidPattern.MatchString(uid) || version == 0 || parsed.fileName() != name {
		return id{}, fmt.Errorf("%q is not the name of a secret's version", name)
	}
	return parsed, nil
}

// A file is a line with the format and a checksum, then the content.
const header = "cloudless-secret 1 %08x\n"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func seal(body []byte) []byte {
	return append(fmt.Appendf(nil, header, crc32.Checksum(body, castagnoli)), body...)
}

// unseal returns the content of a file. No error of this package quotes a file.
func unseal(data []byte) ([]byte, error) {
	line, body, found := bytes.Cut(data, []byte{'\n'})
	if !found || !bytes.Equal(append(bytes.Clone(line), '\n'), fmt.Appendf(nil, header, crc32.Checksum(body, castagnoli))) {
		return nil, errors.New("its format or its checksum is wrong")
	}
	return body, nil
}

func encodeValue(secret *v1.NodeSecret) ([]byte, error) {
	body, err := proto.Marshal(secret)
	if err != nil {
		return nil, errors.New("a secret cannot be encoded")
	}
	return seal(body), nil
}

// decodeValue reads the file of one version of a secret.
func decodeValue(name string, data []byte) (*v1.NodeSecret, error) {
	want, err := parseID(name)
	if err != nil {
		return nil, err
	}
	body, err := unseal(data)
	if err != nil {
		return nil, err
	}
	var secret v1.NodeSecret
	if err := proto.Unmarshal(body, &secret); err != nil {
		return nil, errors.New("its content is damaged")
	}
	if secret.GetUid() != want.uid || secret.GetVersion() != want.version || len(secret.GetValue()) == 0 {
		return nil, errors.New("it is not what its name says")
	}
	return &secret, nil
}

// User is the user of a replica's program, as the program sees it.
type User struct {
	UID, GID int
	// Shift is added to ids of the replica to get those of the machine.
	Shift int
}

// state is what a replica has.
type state struct {
	User User `json:"user"`
	// Started is set once a program was started with it.
	Started bool    `json:"started,omitempty"`
	Entries []entry `json:"entries"`
}

// entry is one use of a secret by a replica. Env or File is set.
type entry struct {
	Name    string `json:"name"`
	UID     string `json:"uid,omitempty"`     // of the secret; empty if it has none of it any more
	Version uint64 `json:"version,omitempty"` // of the secret
	Env     string `json:"env,omitempty"`
	// File is the path that the program sees. Folder is the number of the folder it is in.
	File   string `json:"file,omitempty"`
	Folder int    `json:"folder,omitempty"`
	// Untold is set until the program was told of the version, if it must be.
	Untold bool `json:"untold,omitempty"`
}

func (e entry) id() id { return id{e.UID, e.Version} }

func encodeState(s *state) ([]byte, error) {
	body, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	return seal(body), nil
}

// decodeState reads the state of a replica.
func decodeState(data []byte) (*state, error) {
	body, err := unseal(data)
	if err != nil {
		return nil, err
	}
	var s state
	if err := json.Unmarshal(body, &s); err != nil {
		return nil, errors.New("its content is damaged")
	}
	for _, e := range s.Entries {
		known := e.UID != "" && e.Version > 0
		if (e.Env == "") == (e.File == "") || e.Folder < 0 || known && !uidPattern.MatchString(e.UID) || !known && (e.UID != "" || e.Version > 0) {
			return nil, errors.New("its content makes no sense")
		}
		if e.File != "" && checkPath(e.File) != nil {
			return nil, errors.New("its content makes no sense")
		}
	}
	return &s, nil
}

// read reads a regular file, without following a link.
func read(path string) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() > longestFile {
		return nil, fmt.Errorf("%s is no file of this program", path)
	}
	return io.ReadAll(file)
}

// place writes a file in one step: readers see the old content or the new one. A mode of 0 means 0600, an owner of -1
// the owner of this process.
func (k *Keeper) place(path string, data []byte, mode os.FileMode, uid, gid int) (err error) {
	temp, err := os.CreateTemp(filepath.Join(k.dir, tempName), "")
	if err != nil {
		return noRoom(err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(temp.Name())
		}
	}()
	_, err = temp.Write(data)
	if err == nil && mode != 0 {
		err = temp.Chmod(mode)
	}
	if err == nil && (uid >= 0 || gid >= 0) {
		err = temp.Chown(uid, gid)
	}
	if closed := temp.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(temp.Name(), path)
	}
	return noRoom(err)
}

// noRoom explains that the memory for secrets is full.
func noRoom(err error) error {
	if errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("the memory that this node has for secrets is full: %w", unix.ENOSPC)
	}
	if err != nil {
		return fmt.Errorf("keep a secret: %w", err)
	}
	return nil
}

package s3

import (
	"bytes"
	"encoding/pem"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// shell runs commands of a client in a folder of its own, with the environment that it needs to find the endpoint.
type shell struct {
	t        *testing.T
	endpoint *endpoint
	folder   string
	env      []string
	// before are arguments that every command begins with.
	before []string
}

func newShell(t *testing.T, e *endpoint, command ...string) *shell {
	t.Helper()
	if _, err := exec.LookPath(command[0]); err != nil {
		t.Fatalf("%v: make test-deps installs it", err)
	}
	folder := t.TempDir()
	authority := filepath.Join(folder, "ca.pem")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: e.encrypted.Certificate().Raw})
	if err := os.WriteFile(authority, block, 0o600); err != nil {
		t.Fatal(err)
	}
	return &shell{t: t, endpoint: e, folder: folder, before: command, env: []string{
		"HOME=" + folder, "PATH=/usr/bin:/bin", "LANG=C.UTF-8", "AWS_ACCESS_KEY_ID=" + toolsID, "AWS_SECRET_ACCESS_KEY=" + secret,
		"AWS_DEFAULT_REGION=" + region, "AWS_EC2_METADATA_DISABLED=true", "AWS_PAGER=",
		"RESTIC_PASSWORD=secret", "RESTIC_CACHE_DIR=" + filepath.Join(folder, "cache"),
		"RCLONE_CONFIG_C_TYPE=s3", "RCLONE_CONFIG_C_PROVIDER=Other", "RCLONE_CONFIG_C_ENV_AUTH=true",
		"RCLONE_CONFIG_C_ENDPOINT=" + e.encrypted.URL, "RCLONE_CONFIG_C_REGION=" + region, "RCLONE_CONFIG_C_CHUNK_SIZE=5Mi",
		"RCLONE_CONFIG_C_UPLOAD_CUTOFF=5Mi", "RCLONE_CA_CERT=" + authority,
	}}
}

func (s *shell) ca() string { return filepath.Join(s.folder, "ca.pem") }

// run returns what a command prints.
func (s *shell) run(args ...string) string {
	s.t.Helper()
	printed, err := s.try(args...)
	if err != nil {
		s.t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, printed)
	}
	return printed
}

func (s *shell) try(args ...string) (string, error) {
	s.t.Helper()
	all := append(append([]string{}, s.before...), args...)
	c := exec.CommandContext(s.t.Context(), all[0], all[1:]...)
	c.Dir, c.Env = s.folder, s.env
	printed, err := c.CombinedOutput()
	return string(printed), err
}

// write makes a file, and returns its content.
func (s *shell) write(name string, size int) []byte {
	s.t.Helper()
	data := make([]byte, size)
	rand.NewChaCha8([32]byte{byte(size), byte(size >> 8), byte(len(name))}).Read(data)
	file := filepath.Join(s.folder, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(file, data, 0o600); err != nil {
		s.t.Fatal(err)
	}
	return data
}

// has fails the test unless a file has this content.
func (s *shell) has(name string, want []byte) {
	s.t.Helper()
	got, err := os.ReadFile(filepath.Join(s.folder, name))
	if err != nil {
		s.t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		s.t.Errorf("%s has %d bytes, which are not the %d bytes that were uploaded", name, len(got), len(want))
	}
}

func (s *shell) contains(printed string, wanted ...string) {
	s.t.Helper()
	for _, want := range wanted {
		if !strings.Contains(printed, want) {
			s.t.Errorf("the output has no %q:\n%s", want, printed)
		}
	}
}

// The commands of docs/s3.md, with the clients of Debian.

func awsClient(t *testing.T, e *endpoint) {
	s := newShell(t, e, "/usr/bin/aws")
	s.before = append(s.before, "--endpoint-url", s.endpoint.encrypted.URL)
	s.env = append(s.env, "AWS_CA_BUNDLE="+s.ca())
	small, large := s.write("cat.jpg", 4096), s.write("large.bin", 17<<20)
	s.write("folder/a.txt", 10)
	s.write("folder/b/ä ö+%.txt", 20)

	s.run("s3", "mb", "s3://aws")
	s.run("s3", "cp", "cat.jpg", "s3://aws/cat.jpg")
	s.run("s3", "cp", "large.bin", "s3://aws/large.bin")
	s.run("s3", "sync", "folder", "s3://aws/folder")
	s.contains(s.run("s3", "ls", "--recursive", "s3://aws"), "4096 cat.jpg", "large.bin", "folder/a.txt", "folder/b/ä ö+%.txt")
	s.run("s3", "cp", "s3://aws/cat.jpg", "copy.jpg")
	s.has("copy.jpg", small)
	s.run("s3", "cp", "s3://aws/large.bin", "s3://aws/copy.bin")
	s.run("s3", "cp", "s3://aws/copy.bin", "copy.bin")
	s.has("copy.bin", large)
	s.presigned(strings.TrimSpace(s.run("s3", "presign", "s3://aws/cat.jpg")), small)
	s.run("s3api", "put-object-tagging", "--bucket", "aws", "--key", "cat.jpg", "--tagging", "TagSet=[{Key=kind,Value=pet}]")
	s.contains(s.run("s3api", "get-object-tagging", "--bucket", "aws", "--key", "cat.jpg"), `"pet"`)
	s.run("s3api", "put-bucket-versioning", "--bucket", "aws", "--versioning-configuration", "Status=Enabled")
	s.run("s3api", "put-object", "--bucket", "aws", "--key", "cat.jpg", "--body", "large.bin", "--checksum-algorithm", "SHA256", "--metadata", "from=test")
	s.contains(s.run("s3api", "head-object", "--bucket", "aws", "--key", "cat.jpg", "--checksum-mode", "ENABLED"), "ChecksumSHA256", `"from": "test"`)
	s.contains(s.run("s3api", "list-object-versions", "--bucket", "aws", "--prefix", "cat"), `"VersionId": "null"`, `"IsLatest": true`)
	s.run("s3", "rm", "--recursive", "s3://aws")
	if printed := s.run("s3", "ls", "s3://aws"); printed != "" {
		t.Errorf("after everything was removed, there is %s", printed)
	}
	if printed, err := s.try("s3", "rb", "s3://aws"); err == nil || !strings.Contains(printed, "BucketNotEmpty") {
		t.Errorf("a bucket with old versions was removed: %s", printed)
	}
}

// presigned gets a URL without any key.
func (s *shell) presigned(url string, want []byte) {
	s.t.Helper()
	answer, err := s.endpoint.encrypted.Client().Get(url)
	if err != nil {
		s.t.Fatal(err)
	}
	defer answer.Body.Close()
	got, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK || !bytes.Equal(got, want) {
		s.t.Errorf("the presigned URL answers %s with %d bytes: %v", answer.Status, len(got), err)
	}
}

func s3cmdClient(t *testing.T, e *endpoint) {
	s := newShell(t, e, "s3cmd")
	host := strings.TrimPrefix(s.endpoint.encrypted.URL, "https://")
	s.before = append(s.before, "--host", host, "--host-bucket", host, "--access_key", toolsID, "--secret_key", secret, "--region", region,
		"--ca-certs", s.ca(), "--no-progress")
	small, large := s.write("cat.jpg", 4096), s.write("large.bin", 12<<20)
	s.write("folder/a.txt", 10)

	s.run("mb", "s3://s3cmd")
	s.run("put", "cat.jpg", "s3://s3cmd/pets/cat.jpg")
	s.run("put", "--multipart-chunk-size-mb=5", "large.bin", "s3://s3cmd/large.bin")
	s.run("sync", "folder/", "s3://s3cmd/folder/")
	s.contains(s.run("ls", "-r", "s3://s3cmd"), "s3://s3cmd/pets/cat.jpg", "s3://s3cmd/large.bin", "s3://s3cmd/folder/a.txt")
	s.run("get", "s3://s3cmd/pets/cat.jpg", "copy.jpg")
	s.has("copy.jpg", small)
	s.run("cp", "s3://s3cmd/large.bin", "s3://s3cmd/copy.bin")
	s.run("get", "s3://s3cmd/copy.bin", "copy.bin")
	s.has("copy.bin", large)
	s.contains(s.run("info", "s3://s3cmd/large.bin"), "File size: 12582912", "MD5 sum")
	s.run("mv", "s3://s3cmd/copy.bin", "s3://s3cmd/moved.bin")
	s.run("del", "--recursive", "--force", "s3://s3cmd")
	s.run("rb", "s3://s3cmd")
}

func rcloneClient(t *testing.T, e *endpoint) {
	s := newShell(t, e, "rclone")
	s.write("from/a.txt", 10)
	s.write("from/empty", 0)
	large := s.write("from/b/large.bin", 12<<20)
	s.write("from/b/ä ö+%\u2603.txt", 20)

	s.run("mkdir", "c:rclone")
	s.run("sync", "from", "c:rclone/backup")
	s.run("check", "--download", "from", "c:rclone/backup")
	s.contains(s.run("lsf", "-R", "c:rclone"), "backup/a.txt", "backup/b/large.bin", "backup/b/ä ö+%\u2603.txt")
	s.run("copyto", "c:rclone/backup/b/large.bin", "c:rclone/copy.bin")
	s.run("moveto", "c:rclone/copy.bin", "c:rclone/moved.bin")
	s.run("copyto", "c:rclone/moved.bin", "moved.bin")
	s.has("moved.bin", large)
	s.run("sync", "c:rclone/backup", "to")
	s.run("check", "from", "to")
	s.run("purge", "c:rclone")
}

func resticClient(t *testing.T, e *endpoint) {
	s := newShell(t, e, "restic")
	s.before = append(s.before, "--repo", "s3:"+s.endpoint.encrypted.URL+"/restic/repository", "--cacert", s.ca())
	data := s.write("files/large.bin", 12<<20)
	s.write("files/small.txt", 10)

	s.run("init")
	s.run("backup", "files")
	second := s.write("files/second.bin", 1<<20)
	s.run("backup", "files")
	s.run("check", "--read-data")
	s.run("restore", "latest", "--target", "restored")
	s.has("restored/files/large.bin", data)
	s.has("restored/files/second.bin", second)
	s.run("forget", "--keep-last", "1", "--prune")
	s.contains(s.run("snapshots"), "1 snapshots")
}

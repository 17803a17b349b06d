package s3

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/versity/versitygw/tests/integration"
)

// suiteEndpoint is the variable that makes this program run the suite.
const suiteEndpoint = "CLOUDLESS_TEST_S3_ENDPOINT"

// groups are the parts of the suite that are about what we have. Left out are the websites, the storage systems and the
// user management of versitygw.
var groups = []struct {
	title string
	run   func(*integration.TestState)
	// versions is whether the group needs buckets that keep versions.
	versions bool
}{
	{title: "Signatures", run: integration.TestAuthentication},
	{title: "Presigned URLs", run: integration.TestPresignedAuthentication},
	{title: "Signed and unsigned chunks, trailing checksums", run: each(integration.TestUnsignedStreaminPayloadTrailer, integration.TestSignedStreaminPayload, integration.TestSignedStreaminPayloadTrailer)},
	{title: "Buckets", run: each(integration.TestCreateBucket, integration.TestHeadBucket, integration.TestListBuckets, integration.TestDeleteBucket, integration.TestGetBucketLocation)},
	{title: "Tags of buckets", run: each(integration.TestPutBucketTagging, integration.TestGetBucketTagging, integration.TestDeleteBucketTagging)},
	{title: "Bucket ownership", run: each(integration.TestPutBucketOwnershipControls, integration.TestGetBucketOwnershipControls, integration.TestDeleteBucketOwnershipControls)},
	{title: "ACLs of buckets", run: each(integration.TestPutBucketAcl, integration.TestGetBucketAcl)},
	{title: "Bucket policies", run: each(integration.TestPutBucketPolicy, integration.TestGetBucketPolicy, integration.TestGetBucketPolicyStatus, integration.TestDeleteBucketPolicy)},
	{title: "Access control", run: integration.TestAccessControl},
	{title: "Public buckets", run: integration.TestPublicBuckets},
	{title: "CORS", run: each(integration.TestPutBucketCors, integration.TestGetBucketCors, integration.TestDeleteBucketCors, integration.TestPreflightOPTIONSEndpoint, integration.TestCORSMiddleware)},
	{title: "Put an object", run: integration.TestPutObject},
	{title: "Get and head an object, ranges, conditions", run: each(integration.TestGetObject, integration.TestHeadObject, integration.TestGetObjectAttributes)},
	{title: "Upload by an HTML form", run: integration.TestPostObject},
	{title: "List objects", run: each(integration.TestListObjects, integration.TestListObjectsV2)},
	{title: "Delete objects", run: each(integration.TestDeleteObject, integration.TestDeleteObjects)},
	{title: "Copy objects", run: integration.TestCopyObject},
	{title: "Tags of objects", run: each(integration.TestPutObjectTagging, integration.TestGetObjectTagging, integration.TestDeleteObjectTagging)},
	{title: "Multipart uploads", run: each(integration.TestCreateMultipartUpload, integration.TestUploadPart, integration.TestUploadPartCopy, integration.TestListParts, integration.TestListMultipartUploads, integration.TestAbortMultipartUpload, integration.TestCompleteMultipartUpload)},
	{title: "Versions", run: integration.TestVersioning, versions: true},
	{title: "Object lock", run: each(integration.TestPutObjectLockConfiguration, integration.TestGetObjectLockConfiguration, integration.TestPutObjectRetention, integration.TestGetObjectRetention, integration.TestPutObjectLegalHold, integration.TestGetObjectLegalHold, integration.TestWORMProtection)},
	{title: "What nobody implements", run: integration.TestNotImplementedActions},
	{title: "Requests that make no sense", run: each(integration.TestRouter, integration.TestServer)},
}

func each(tests ...func(*integration.TestState)) func(*integration.TestState) {
	return func(s *integration.TestState) {
		for _, test := range tests {
			test(s)
		}
	}
}

// runSuite prints the outcome of every case.
func runSuite(endpoint string) int {
	for _, g := range groups {
		options := []integration.Option{
			integration.WithAccess(keyID), integration.WithSecret(secret), integration.WithRegion(region),
			integration.WithEndpoint(endpoint), integration.WithPartSize(64 << 20), integration.WithConcurrency(1),
		}
		if g.versions {
			options = append(options, integration.WithVersioningEnabled())
		}
		fmt.Printf("\nGROUP %s\n", g.title)
		state := integration.NewTestState(context.Background(), integration.NewS3Conf(options...), true)
		g.run(state)
		state.Wait()
	}
	return 0
}

// outcome is what became of a case of the suite.
type outcome struct {
	group, name string
	passed      bool
	why         string
}

var coloured = regexp.MustCompile("\x1b\\[[0-9;]*m")

// outcomes runs the suite in a process of its own, because it prints its results, and ends its process when it cannot go on.
func outcomes(t *testing.T, endpoint string) []outcome {
	t.Helper()
	folder := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(folder, "versitygw")); err != nil {
		t.Fatal(err)
	}
	run := exec.CommandContext(t.Context(), self)
	run.Dir, run.Env = folder, []string{suiteEndpoint + "=" + endpoint, "HOME=" + folder, "PATH=/usr/bin:/bin"}
	var said bytes.Buffer
	run.Stderr = &said
	printed, err := run.Output()
	if err != nil {
		t.Fatalf("the suite ended with %v: %s\n%s", err, &said, printed)
	}
	var all []outcome
	group := ""
	for line := range strings.Lines(coloured.ReplaceAllString(string(printed), "")) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		rest = strings.TrimSpace(rest)
		switch word {
		case "GROUP":
			group = rest
		case "PASS", "FAIL":
			name, why, _ := strings.Cut(rest, ":")
			all = append(all, outcome{group: group, name: strings.TrimSpace(name), passed: word == "PASS", why: strings.TrimSpace(why)})
		}
	}
	return all
}

// unsupported reads the list of cases that are not expected to pass, with the reasons.
func unsupported(t *testing.T) map[string]string {
	t.Helper()
	f, err := os.Open("testdata/unsupported.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	reasons := map[string]string{}
	reason := ""
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := strings.TrimSpace(lines.Text())
		if title, is := strings.CutPrefix(line, "#"); is {
			reason = strings.TrimSpace(title)
		} else if line != "" {
			reasons[line] = reason
		}
	}
	return reasons
}

// The suite of versitygw has some hundred cases. Each of them passes, or it is listed as not supported and fails.
func suite(t *testing.T, e *endpoint) {
	reasons := unsupported(t)
	seen := map[string]bool{}
	for _, o := range outcomes(t, e.plain.URL) {
		_, listed := reasons[o.name]
		seen[o.name] = true
		switch {
		case !o.passed && !listed:
			t.Errorf("%s: %s: %s", o.group, o.name, o.why)
		case o.passed && listed:
			t.Errorf("%s: %s passes, but is listed as not supported: %s", o.group, o.name, reasons[o.name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(reasons)) {
		if !seen[name] {
			t.Errorf("%s is listed as not supported, and is not part of the suite", name)
		}
	}
}

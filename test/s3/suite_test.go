package s3

import (
	"bufio"
	"bytes"
	"context"
	"flag"
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

// update writes the table of docs/s3.md instead of comparing it.
var update = flag.Bool("update", false, "write the table of docs/s3.md")

// The suite of versitygw has some hundred cases. Each of them passes, or it is listed as not supported and fails.
func suite(t *testing.T, e *endpoint) {
	reasons := unsupported(t)
	seen := map[string]bool{}
	all := outcomes(t, e.plain.URL)
	for _, o := range all {
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
	if !t.Failed() {
		documented(t, table(all, reasons))
	}
}

// table says for each group how many cases pass, and why the others do not.
func table(all []outcome, reasons map[string]string) string {
	var text strings.Builder
	text.WriteString("| cases about | pass | do not pass |\n| --- | --- | --- |\n")
	for _, g := range groups {
		passed, others := 0, map[string]int{}
		for _, o := range all {
			if o.group != g.title {
				continue
			}
			if o.passed {
				passed++
			} else {
				others[reasons[o.name]]++
			}
		}
		var why []string
		for _, reason := range slices.Sorted(maps.Keys(others)) {
			why = append(why, fmt.Sprintf("%d: %s", others[reason], reason))
		}
		fmt.Fprintf(&text, "| %s | %d | %s |\n", g.title, passed, strings.Join(why, "; "))
	}
	return text.String()
}

const page = "../../docs/s3.md"

// documented compares the table with that of the page.
func documented(t *testing.T, want string) {
	t.Helper()
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(data), "-update -->\n")
	_, after, ended := strings.Cut(rest, "<!-- end of suite -->")
	if !found || !ended {
		t.Fatalf("%s has no place for the table", page)
	}
	now := before + "-update -->\n" + want + "<!-- end of suite -->" + after
	if *update {
		if err := os.WriteFile(page, []byte(now), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if now != string(data) {
		t.Errorf("the table of %s is not what the suite says: go test ./test/s3 -update", page)
	}
}

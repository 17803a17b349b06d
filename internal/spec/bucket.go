package spec

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// The kinds of buckets and of the keys to them.
const (
	KindBucket    = "Bucket"
	KindAccessKey = "AccessKey"
)

// The phases of a bucket.
const (
	BucketReady    = "ready"
	BucketDeleting = "deleting"
)

// Region is what S3 clients name as the region of the cluster.
const Region = "us-east-1"

// shortestBucketName and longestBucketName are S3's limits.
const shortestBucketName, longestBucketName = 3, 63

// reservedPrefixes and reservedSuffixes mean something else to S3 clients.
var (
	reservedPrefixes = []string{"xn--", "sthree-", "amzn-s3-demo-"}
	reservedSuffixes = []string{"-s3alias", "--ol-s3", "--x-s3", "--table-s3"}
)

// shortestUploadTTL leaves time for an upload that is going on.
const shortestUploadTTL = time.Hour

func init() {
	checkObjects(checkBucket)
}

// checkBucket checks what the API's rules cannot express.
func checkBucket(b *v1.Bucket, found *violations) {
	if !found.has("metadata.name") {
		if words := BucketNameProblem(b.GetMetadata().GetName()); words != "" {
			found.add("metadata.name", "%s", words)
		}
	}
	s := b.GetSpec()
	if most, ok := readAmount("spec.quota", s.GetQuota(), ParseBytes, found); ok && most == 0 {
		found.add("spec.quota", "must be more than 0; leave it out for a bucket without limit")
	}
	if ttl, ok := readAmount("spec.uploadTtl", s.GetUploadTtl(), ParseDuration, found); ok && ttl < shortestUploadTTL {
		found.add("spec.uploadTtl", "must be at least 1h: a client may pause for some time between two parts")
	}
	prefixes := map[string]int{}
	for i, rule := range s.GetExpiry() {
		at := indexPath("spec.expiry", i)
		if after, ok := readAmount(at+".after", rule.GetAfter(), ParseDuration, found); ok && after == 0 {
			found.add(at+".after", "must be more than 0: objects would be deleted as soon as they are put")
		}
		if first, twice := prefixes[rule.GetPrefix()]; twice {
			found.add(at+".prefix", "is that of %s too; leave one of them out", indexPath("spec.expiry", first))
		} else {
			prefixes[rule.GetPrefix()] = i
		}
	}
}

// BucketNameProblem says why S3 clients could not use a bucket of this name; empty if they can.
func BucketNameProblem(name string) string {
	switch {
	case name == "":
		return "is missing"
	case len(name) < shortestBucketName || len(name) > longestBucketName:
		return "must have 3 to 63 characters: S3 clients refuse other names"
	}
	for _, prefix := range reservedPrefixes {
		if strings.HasPrefix(name, prefix) {
			return "must not begin with " + prefix + ", which means something else to S3 clients"
		}
	}
	for _, suffix := range reservedSuffixes {
		if strings.HasSuffix(name, suffix) {
			return "must not end with " + suffix + ", which means something else to S3 clients"
		}
	}
	return ""
}

// NormalizeBucket brings a bucket to its canonical form in place.
func NormalizeBucket(b *v1.Bucket) {
	b.ApiVersion, b.Kind = APIVersion, KindBucket
	if b.Metadata == nil {
		b.Metadata = &v1.Metadata{}
	}
	fill(&b.Metadata.Namespace, DefaultNamespace)
	if b.Spec == nil {
		b.Spec = &v1.BucketSpec{}
	}
	s := b.Spec
	normalBytes(&s.Quota)
	normalDuration(&s.UploadTtl, "")
	for _, rule := range s.Expiry {
		normalDuration(&rule.After, "")
	}
	slices.SortFunc(s.Expiry, func(a, b *v1.ExpiryRule) int { return strings.Compare(a.GetPrefix(), b.GetPrefix()) })
	if proto.Size(s.S3) == 0 {
		s.S3 = nil
	}
}

func normalBytes(s *string) {
	if n, err := ParseBytes(*s); err == nil && *s != "" {
		*s = FormatBytes(n)
	}
}

// NormalAccessKey is the spec of an access key in canonical form.
func NormalAccessKey(s *v1.AccessKeySpec) *v1.AccessKeySpec {
	c := proto.CloneOf(s)
	slices.Sort(c.Buckets)
	return c
}

// Storage says how the object store keeps its promises.
type Storage struct {
	// RepairDelay is how long a node may be away before others copy what it has.
	RepairDelay time.Duration
	// RepairRate is how many bytes a second are copied to nodes that are not idle.
	RepairRate int64
	// ScrubEvery is how often a node checks everything that it has.
	ScrubEvery time.Duration
}

const (
	// A reboot with updates takes minutes, and copying the disk of a node takes hours; two more nodes rarely fail meanwhile.
	defaultRepairDelay             = 10 * time.Minute
	minRepairDelay, maxRepairDelay = 10 * time.Second, 30 * 24 * time.Hour
	// Half of a line of 1 Gbit/s.
	defaultRepairRate = 64 << 20
	// With less, a single piece of 4 MiB would take longer than a node may take for it.
	minRepairRate                = 1 << 20
	defaultScrubEvery            = 7 * 24 * time.Hour
	minScrubEvery, maxScrubEvery = time.Hour, 365 * 24 * time.Hour
)

// StorageOf returns the configured object store.
func StorageOf(c *v1.ClusterSpec) Storage {
	s := c.GetStorage()
	rate, err := ParseBytes(s.GetRepairRate())
	if err != nil || rate == 0 {
		rate = defaultRepairRate
	}
	return Storage{
		RepairDelay: cmp.Or(durationOf(s.GetRepairDelay()), defaultRepairDelay), RepairRate: rate,
		ScrubEvery: cmp.Or(durationOf(s.GetScrubEvery()), defaultScrubEvery),
	}
}

func normalStorage(s *v1.ObjectStorage) *v1.ObjectStorage {
	if s == nil {
		return nil
	}
	canonicalDuration(&s.RepairDelay)
	normalBytes(&s.RepairRate)
	canonicalDuration(&s.ScrubEvery)
	return unlessEmpty(s)
}

func checkStorage(path string, s *v1.ObjectStorage, found *violations) {
	within(path+".repairDelay", s.GetRepairDelay(), minRepairDelay, maxRepairDelay, found)
	within(path+".scrubEvery", s.GetScrubEvery(), minScrubEvery, maxScrubEvery, found)
	if n, ok := readAmount(path+".repairRate", s.GetRepairRate(), ParseBytes, found); ok && n < minRepairRate {
		found.add(path+".repairRate", "%s is too slow: give at least %s", FormatBytes(n), FormatBytes(minRepairRate))
	}
}

package s3

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"

	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/object/names"
)

// spelling is how an answer writes keys: as they are, or escaped, because XML cannot have every character.
type spelling struct {
	escaped bool
}

func spellingOf(ctx context.Context) spelling {
	return spelling{escaped: callOf(ctx).escaped}
}

func (s spelling) write(key string) *string {
	if s.escaped {
		key = strings.ReplaceAll(url.QueryEscape(key), "%2F", "/")
	}
	return &key
}

// optional is write, but nil for an empty string.
func (s spelling) optional(key string) *string {
	if key == "" {
		return nil
	}
	return s.write(key)
}

func (s spelling) encoding() types.EncodingType {
	if s.escaped {
		return types.EncodingTypeUrl
	}
	return ""
}

func (s spelling) prefixes(listing names.Listing) []types.CommonPrefix {
	var all []types.CommonPrefix
	for _, item := range listing.Items {
		if item.Version == nil {
			all = append(all, types.CommonPrefix{Prefix: s.write(item.Key)})
		}
	}
	return all
}

func (s spelling) contents(b object.Bucket, listing names.Listing, withOwner bool) []s3response.Object {
	var all []s3response.Object
	for _, item := range listing.Items {
		if item.Version == nil {
			continue
		}
		size := item.Version.GetSize()
		o := s3response.Object{
			Key: s.write(item.Key), Size: &size, ETag: quoted(item.Version.GetEtag()),
			LastModified: moment(item.Version.GetTime()), StorageClass: types.ObjectStorageClassStandard,
		}
		if sum := shown(item.Version.GetChecksum()); sum.Algorithm != "" {
			o.ChecksumAlgorithm, o.ChecksumType = []types.ChecksumAlgorithm{sum.Algorithm}, sum.Type
		}
		if withOwner {
			o.Owner = ownerOf(b)
		}
		all = append(all, o)
	}
	return all
}

// list returns a page of current versions.
func (s *store) list(ctx context.Context, b object.Bucket, prefix, delimiter, after string, limit int32) (names.Listing, error) {
	listing, err := s.objects.List(callOf(ctx).ctx, b, names.ListRequest{
		Prefix: prefix, Delimiter: delimiter, After: after, Limit: int(limit),
	})
	return listing, s.fail(err, about{bucket: b.Name})
}

func number(n *int32) int32 {
	if n == nil {
		return 0
	}
	return *n
}

// ListObjects implements backend.Backend.
func (s *store) ListObjects(ctx context.Context, in *s3.ListObjectsInput) (s3response.ListObjectsResult, error) {
	b, err := s.bucket(ctx, in.Bucket)
	if err != nil {
		return s3response.ListObjectsResult{}, err
	}
	prefix, delimiter, marker, limit := text(in.Prefix), text(in.Delimiter), text(in.Marker), number(in.MaxKeys)
	listing, err := s.list(ctx, b, prefix, delimiter, marker, limit)
	if err != nil {
		return s3response.ListObjectsResult{}, err
	}
	as := spellingOf(ctx)
	out := s3response.ListObjectsResult{
		Name: &b.Name, Prefix: as.optional(prefix), Delimiter: as.optional(delimiter), Marker: as.optional(marker), MaxKeys: &limit,
		IsTruncated: &listing.More, Contents: as.contents(b, listing, true), CommonPrefixes: as.prefixes(listing),
		EncodingType: as.encoding(),
	}
	if listing.More {
		out.NextMarker = as.write(listing.Last)
	}
	return out, nil
}

// ListObjectsV2 implements backend.Backend.
func (s *store) ListObjectsV2(ctx context.Context, in *s3.ListObjectsV2Input) (s3response.ListObjectsV2Result, error) {
	b, err := s.bucket(ctx, in.Bucket)
	if err != nil {
		return s3response.ListObjectsV2Result{}, err
	}
	prefix, delimiter, limit, start := text(in.Prefix), text(in.Delimiter), number(in.MaxKeys), text(in.StartAfter)
	token := text(in.ContinuationToken)
	after, err := keyOfToken(token)
	if err != nil {
		return s3response.ListObjectsV2Result{}, err
	}
	listing, err := s.list(ctx, b, prefix, delimiter, max(after, start), limit)
	if err != nil {
		return s3response.ListObjectsV2Result{}, err
	}
	as, count := spellingOf(ctx), int32(len(listing.Items))
	out := s3response.ListObjectsV2Result{
		Name: &b.Name, Prefix: as.optional(prefix), Delimiter: as.optional(delimiter), StartAfter: as.optional(start), MaxKeys: &limit,
		ContinuationToken: filled(token), KeyCount: &count, IsTruncated: &listing.More,
		Contents:       as.contents(b, listing, in.FetchOwner != nil && *in.FetchOwner),
		CommonPrefixes: as.prefixes(listing), EncodingType: as.encoding(),
	}
	if listing.More {
		out.NextContinuationToken = filled(tokenOfKey(listing.Last))
	}
	return out, nil
}

// encodedToken begins a token that has its key in base64.
const encodedToken = "base64:"

// tokenOfKey is the token of the page behind a key. It is the key itself, unless XML cannot have it.
func tokenOfKey(key string) string {
	plain := utf8.ValidString(key) && !strings.ContainsFunc(key, func(r rune) bool {
		return r < 0x20 || r == 0xFFFD || r == 0xFFFE || r == 0xFFFF
	})
	if plain && !strings.HasPrefix(key, encodedToken) {
		return key
	}
	return encodedToken + base64.RawURLEncoding.EncodeToString([]byte(key))
}

func keyOfToken(token string) (string, error) {
	encoded, isEncoded := strings.CutPrefix(token, encodedToken)
	if !isEncoded {
		return token, nil
	}
	key, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil {
		return "", s3err.APIError{
			Code: "InvalidArgument", Description: "The continuation token provided is incorrect", HTTPStatusCode: 400,
		}
	}
	return string(key), nil
}

// ListObjectVersions implements backend.Backend.
func (s *store) ListObjectVersions(ctx context.Context, in *s3.ListObjectVersionsInput) (s3response.ListVersionsResult, error) {
	b, err := s.bucket(ctx, in.Bucket)
	if err != nil {
		return s3response.ListVersionsResult{}, err
	}
	prefix, delimiter, key, version, limit := text(in.Prefix), text(in.Delimiter), text(in.KeyMarker), text(in.VersionIdMarker), number(in.MaxKeys)
	after, err := versionMarker(version)
	if err != nil {
		return s3response.ListVersionsResult{}, err
	}
	listing, err := s.objects.List(callOf(ctx).ctx, b, names.ListRequest{
		Prefix: prefix, Delimiter: delimiter, After: key, AfterVersion: after, Versions: true, Limit: int(limit),
	})
	if err != nil {
		return s3response.ListVersionsResult{}, s.fail(err, about{bucket: b.Name})
	}
	as := spellingOf(ctx)
	out := s3response.ListVersionsResult{
		Name: &b.Name, Prefix: as.write(prefix), Delimiter: as.write(delimiter), KeyMarker: as.write(key), VersionIdMarker: &version,
		MaxKeys: &limit, IsTruncated: &listing.More, CommonPrefixes: as.prefixes(listing), EncodingType: as.encoding(),
		NextKeyMarker: as.write(""), NextVersionIdMarker: new(string),
	}
	if listing.More {
		last := listing.Items[len(listing.Items)-1]
		out.NextKeyMarker = as.write(listing.Last)
		if last.Version != nil {
			id := object.VersionID(last.Version)
			out.NextVersionIdMarker = &id
		}
	}
	as.versions(b, listing, &out)
	return out, nil
}

func (s spelling) versions(b object.Bucket, listing names.Listing, out *s3response.ListVersionsResult) {
	for _, item := range listing.Items {
		if item.Version == nil {
			continue
		}
		id, latest, size := object.VersionID(item.Version), item.Latest, item.Version.GetSize()
		if item.Version.GetDeleteMarker() {
			out.DeleteMarkers = append(out.DeleteMarkers, types.DeleteMarkerEntry{
				Key: s.write(item.Key), VersionId: &id, IsLatest: &latest, LastModified: moment(item.Version.GetTime()), Owner: ownerOf(b),
			})
			continue
		}
		v := s3response.ObjectVersion{
			Key: s.write(item.Key), VersionId: &id, IsLatest: &latest, Size: &size, ETag: quoted(item.Version.GetEtag()),
			LastModified: moment(item.Version.GetTime()), Owner: ownerOf(b), StorageClass: types.ObjectVersionStorageClassStandard,
		}
		if sum := shown(item.Version.GetChecksum()); sum.Algorithm != "" {
			v.ChecksumAlgorithm, v.ChecksumType = []types.ChecksumAlgorithm{sum.Algorithm}, sum.Type
		}
		out.Versions = append(out.Versions, v)
	}
}

// versionMarker is a version as the names know it.
func versionMarker(id string) ([]byte, error) {
	if id == "" || id == "null" {
		return []byte(id), nil
	}
	raw, err := hex.DecodeString(id)
	if err != nil || len(raw) != 16 {
		return nil, s3err.GetInvalidArgumentErr(s3err.InvalidArgVersionId, id)
	}
	return raw, nil
}

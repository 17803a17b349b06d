package s3

import (
	"io"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/versity/versitygw/s3api/middlewares"
	"github.com/versity/versitygw/s3api/utils"
	"github.com/versity/versitygw/s3response"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
)

// ownChecksum is the algorithm for content whose client has asked for none.
const ownChecksum = types.ChecksumAlgorithmCrc64nvme

// unasked marks the checksum of a part that the client does not know of. It is needed for that of the whole object.
const unasked = "UNASKED"

// sums are the fields for checksums that many messages of S3 have.
type sums struct {
	CRC32, CRC32C, CRC64NVME, SHA1, SHA256, SHA512, MD5, XXHASH64, XXHASH3, XXHASH128 *string
}

// of returns the field of an algorithm.
func (s *sums) of(algorithm types.ChecksumAlgorithm) **string {
	switch algorithm {
	case types.ChecksumAlgorithmCrc32:
		return &s.CRC32
	case types.ChecksumAlgorithmCrc32c:
		return &s.CRC32C
	case types.ChecksumAlgorithmCrc64nvme:
		return &s.CRC64NVME
	case types.ChecksumAlgorithmSha1:
		return &s.SHA1
	case types.ChecksumAlgorithmSha256:
		return &s.SHA256
	case types.ChecksumAlgorithmSha512:
		return &s.SHA512
	case types.ChecksumAlgorithmMd5:
		return &s.MD5
	case types.ChecksumAlgorithmXxhash64:
		return &s.XXHASH64
	case types.ChecksumAlgorithmXxhash3:
		return &s.XXHASH3
	case types.ChecksumAlgorithmXxhash128:
		return &s.XXHASH128
	}
	return new(*string)
}

// given returns the checksum that a client has sent, if there is one.
func (s *sums) given() (types.ChecksumAlgorithm, string) {
	for _, algorithm := range types.ChecksumAlgorithm("").Values() {
		if value := *s.of(algorithm); value != nil {
			return algorithm, strings.Clone(*value)
		}
	}
	return "", ""
}

// count is how many checksums a client has sent, and the last one.
func (s *sums) count() (n int, last string) {
	for _, algorithm := range types.ChecksumAlgorithm("").Values() {
		if value := *s.of(algorithm); value != nil {
			n, last = n+1, *value
		}
	}
	return n, last
}

// shown are the fields of a stored checksum, for an answer.
func shown(c *objectv1.Checksum) s3response.Checksum {
	if c.GetValue() == "" || c.GetType() == unasked {
		return s3response.Checksum{}
	}
	var s sums
	value := c.GetValue()
	*s.of(types.ChecksumAlgorithm(c.GetAlgorithm())) = &value
	return s3response.Checksum{
		Algorithm: types.ChecksumAlgorithm(c.GetAlgorithm()), Type: types.ChecksumType(c.GetType()),
		CRC32: s.CRC32, CRC32C: s.CRC32C, CRC64NVME: s.CRC64NVME, SHA1: s.SHA1, SHA256: s.SHA256, SHA512: s.SHA512,
		MD5: s.MD5, XXHASH64: s.XXHASH64, XXHASH3: s.XXHASH3, XXHASH128: s.XXHASH128,
	}
}

// summing is a body whose checksum is computed while it is read. At its end it fails if the client has sent another one.
type summing struct {
	io.Reader
	algorithm types.ChecksumAlgorithm
	sum       func() string
	// asked is whether the client has sent a checksum, or will send it behind the content.
	asked bool
}

// summed wraps a body. Without a checksum from the client, it computes that of the algorithm that is otherwise wanted.
func summed(body io.Reader, s sums, otherwise types.ChecksumAlgorithm) (*summing, error) {
	if trailing, ok := body.(middlewares.ChecksumReader); ok && trailing.Algorithm() != "" {
		algorithm := types.ChecksumAlgorithm(strings.ToUpper(trailing.Algorithm()))
		return &summing{Reader: body, algorithm: algorithm, sum: trailing.Checksum, asked: true}, nil
	}
	algorithm, value := s.given()
	asked := algorithm != ""
	if !asked {
		algorithm = otherwise
	}
	reader, err := utils.NewHashReader(body, value, utils.HashType(strings.ToLower(string(algorithm))))
	if err != nil {
		return nil, err
	}
	return &summing{Reader: reader, algorithm: algorithm, sum: reader.Sum, asked: asked}, nil
}

// checksum is the checksum of what was read.
func (s *summing) checksum(kind types.ChecksumType) *objectv1.Checksum {
	return &objectv1.Checksum{Algorithm: string(s.algorithm), Value: strings.Clone(s.sum()), Type: string(kind)}
}

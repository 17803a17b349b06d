package s3

import (
	"bytes"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// Clients see whether an object is encrypted, as in S3, and need do nothing for it.
func TestAnswersSayWhetherAnObjectIsEncrypted(t *testing.T) {
	g := newGateway(t)
	key, _, err := g.directory.AccessKey(t.Context(), keyID)
	if err != nil {
		t.Fatal(err)
	}
	for bucket, want := range map[string]types.ServerSideEncryption{"photos": "", "vault": types.ServerSideEncryptionAes256} {
		g.bucket(bucket)
		if err := g.directory.UpdateBucket(t.Context(), key, bucket, func(s *v1.BucketSpec) { s.Encrypted = want != "" }); err != nil {
			t.Fatal(err)
		}
		data, name, source := bytesOf(5<<20+1), "cat.jpg", bucket+"/cat.jpg"
		put := g.put(bucket, name, data)
		head, err := g.own().HeadObject(t.Context(), &s3.HeadObjectInput{Bucket: &bucket, Key: &name})
		if err != nil {
			t.Fatal(err)
		}
		got, err := g.own().GetObject(t.Context(), &s3.GetObjectInput{Bucket: &bucket, Key: &name})
		if err != nil {
			t.Fatal(err)
		}
		got.Body.Close()
		other := "copy.jpg"
		copied, err := g.own().CopyObject(t.Context(), &s3.CopyObjectInput{Bucket: &bucket, Key: &other, CopySource: &source})
		if err != nil {
			t.Fatal(err)
		}
		joint := "joint.jpg"
		begun, err := g.own().CreateMultipartUpload(t.Context(), &s3.CreateMultipartUploadInput{Bucket: &bucket, Key: &joint})
		if err != nil {
			t.Fatal(err)
		}
		one, two := int32(1), int32(2)
		part, err := g.own().UploadPart(t.Context(), &s3.UploadPartInput{
			Bucket: &bucket, Key: &joint, UploadId: begun.UploadId, PartNumber: &one, Body: bytes.NewReader(data),
		})
		if err != nil {
			t.Fatal(err)
		}
		second, err := g.own().UploadPartCopy(t.Context(), &s3.UploadPartCopyInput{
			Bucket: &bucket, Key: &joint, UploadId: begun.UploadId, PartNumber: &two, CopySource: &source,
		})
		if err != nil {
			t.Fatal(err)
		}
		done, err := g.own().CompleteMultipartUpload(t.Context(), &s3.CompleteMultipartUploadInput{
			Bucket: &bucket, Key: &joint, UploadId: begun.UploadId,
			MultipartUpload: &types.CompletedMultipartUpload{Parts: []types.CompletedPart{
				{PartNumber: &one, ETag: part.ETag}, {PartNumber: &two, ETag: second.CopyPartResult.ETag},
			}},
		})
		if err != nil {
			t.Fatal(err)
		}
		for call, said := range map[string]types.ServerSideEncryption{
			"put": put.ServerSideEncryption, "head": head.ServerSideEncryption, "get": got.ServerSideEncryption,
			"copy": copied.ServerSideEncryption, "begin": begun.ServerSideEncryption, "part": part.ServerSideEncryption,
			"copy of a part": second.ServerSideEncryption, "completion": done.ServerSideEncryption,
		} {
			if said != want {
				t.Errorf("%s in %s says %q, want %q", call, bucket, said, want)
			}
		}
		if !bytes.Equal(g.get(bucket, joint), append(bytes.Clone(data), data...)) || !bytes.Equal(g.get(bucket, other), data) {
			t.Errorf("objects of %s have other bytes", bucket)
		}
	}
}

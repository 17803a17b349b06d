// Package s3 tests the S3 API with clients that others have written: the suite of versitygw, and the command lines aws,
// s3cmd, rclone and restic.
package s3

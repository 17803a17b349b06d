package state

// What is sealed in the state is bound to its use: a sealed secret cannot be opened in the place of another.

// CertificateKeyContext binds the key of a certificate.
func CertificateKeyContext(certificateUID string) string {
	return "cloudless/certificate-key/" + certificateUID
}

// ChallengeKeyContext binds the key of the certificate that answers an ACME authority.
func ChallengeKeyContext(challengeUID string) string {
	return "cloudless/certificate-challenge/" + challengeUID
}

// AcmeAccountContext binds the key of an account at an ACME authority.
func AcmeAccountContext(accountUID string) string { return "cloudless/acme-account/" + accountUID }

// DNSSettingContext binds a setting of a DNS provider.
func DNSSettingContext(provider, setting string) string {
	return "cloudless/dns-setting/" + provider + "/" + setting
}

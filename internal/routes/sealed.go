package routes

// Sealed keys are bound to their use, so that one cannot be put in the place of another.

// KeyContext binds the sealed key of a certificate.
func KeyContext(certificateUID string) string { return "cloudless/certificate-key/" + certificateUID }

// ChallengeContext binds the sealed key of a challenge's certificate.
func ChallengeContext(challengeUID string) string { return "cloudless/challenge-key/" + challengeUID }

"""Authentication, ACLs, delegation tokens, SCRAM credentials."""

from scriba.wire.schema import (
    Bool,
    Bytes,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    NullableStr,
    Str,
    Struct,
    field,
)


class SaslHandshakeRequest(Message, key=17, versions="0-1"):
    mechanism: Str = field("0+")


class SaslHandshakeResponse(Message, key=17, versions="0-1"):
    error_code: Int16 = field("0+")
    mechanisms: list[Str] = field("0+")


class SaslAuthenticateRequest(Message, key=36, versions="0-2", flexible="2+"):
    auth_bytes: Bytes = field("0+")


class SaslAuthenticateResponse(Message, key=36, versions="0-2", flexible="2+"):
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("0+")
    auth_bytes: Bytes = field("0+")
    session_lifetime_ms: Int64 = field("1+", ignorable=True)


class DescribeAclsRequest(Message, key=29, versions="1-3", flexible="2+"):
    resource_type_filter: Int8 = field("0+")
    resource_name_filter: NullableStr = field("0+")
    pattern_type_filter: Int8 = field("1+", default=3)
    principal_filter: NullableStr = field("0+")
    host_filter: NullableStr = field("0+")
    operation: Int8 = field("0+")
    permission_type: Int8 = field("0+")


class AclDescription(Struct):
    principal: Str = field("0+")
    host: Str = field("0+")
    operation: Int8 = field("0+")
    permission_type: Int8 = field("0+")


class DescribeAclsResource(Struct):
    resource_type: Int8 = field("0+")
    resource_name: Str = field("0+")
    pattern_type: Int8 = field("1+", default=3)
    acls: list[AclDescription] = field("0+")


class DescribeAclsResponse(Message, key=29, versions="1-3", flexible="2+"):
    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("0+")
    resources: list[DescribeAclsResource] = field("0+")


class AclCreation(Struct):
    resource_type: Int8 = field("0+")
    resource_name: Str = field("0+")
    resource_pattern_type: Int8 = field("1+", default=3)
    principal: Str = field("0+")
    host: Str = field("0+")
    operation: Int8 = field("0+")
    permission_type: Int8 = field("0+")


class CreateAclsRequest(Message, key=30, versions="1-3", flexible="2+"):
    creations: list[AclCreation] = field("0+")


class AclCreationResult(Struct):
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("0+")


class CreateAclsResponse(Message, key=30, versions="1-3", flexible="2+"):
    throttle_time_ms: Int32 = field("0+")
    results: list[AclCreationResult] = field("0+")


class DeleteAclsFilter(Struct):
    resource_type_filter: Int8 = field("0+")
    resource_name_filter: NullableStr = field("0+")
    pattern_type_filter: Int8 = field("1+", default=3)
    principal_filter: NullableStr = field("0+")
    host_filter: NullableStr = field("0+")
    operation: Int8 = field("0+")
    permission_type: Int8 = field("0+")


class DeleteAclsRequest(Message, key=31, versions="1-3", flexible="2+"):
    filters: list[DeleteAclsFilter] = field("0+")


class DeleteAclsMatchingAcl(Struct):
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("0+")
    resource_type: Int8 = field("0+")
    resource_name: Str = field("0+")
    pattern_type: Int8 = field("1+", default=3)
    principal: Str = field("0+")
    host: Str = field("0+")
    operation: Int8 = field("0+")
    permission_type: Int8 = field("0+")


class DeleteAclsFilterResult(Struct):
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("0+")
    matching_acls: list[DeleteAclsMatchingAcl] = field("0+")


class DeleteAclsResponse(Message, key=31, versions="1-3", flexible="2+"):
    throttle_time_ms: Int32 = field("0+")
    filter_results: list[DeleteAclsFilterResult] = field("0+")


class CreatableRenewers(Struct):
    principal_type: Str = field("0+")
    principal_name: Str = field("0+")


class CreateDelegationTokenRequest(Message, key=38, versions="1-3", flexible="2+"):
    owner_principal_type: NullableStr = field("3+")
    owner_principal_name: NullableStr = field("3+")
    renewers: list[CreatableRenewers] = field("0+")
    max_lifetime_ms: Int64 = field("0+")


class CreateDelegationTokenResponse(Message, key=38, versions="1-3", flexible="2+"):
    error_code: Int16 = field("0+")
    principal_type: Str = field("0+")
    principal_name: Str = field("0+")
    token_requester_principal_type: Str = field("3+")
    token_requester_principal_name: Str = field("3+")
    issue_timestamp_ms: Int64 = field("0+")
    expiry_timestamp_ms: Int64 = field("0+")
    max_timestamp_ms: Int64 = field("0+")
    token_id: Str = field("0+")
    hmac: Bytes = field("0+")
    throttle_time_ms: Int32 = field("0+")


class RenewDelegationTokenRequest(Message, key=39, versions="1-2", flexible="2+"):
    hmac: Bytes = field("0+")
    renew_period_ms: Int64 = field("0+")


class RenewDelegationTokenResponse(Message, key=39, versions="1-2", flexible="2+"):
    error_code: Int16 = field("0+")
    expiry_timestamp_ms: Int64 = field("0+")
    throttle_time_ms: Int32 = field("0+")


class ExpireDelegationTokenRequest(Message, key=40, versions="1-2", flexible="2+"):
    hmac: Bytes = field("0+")
    expiry_time_period_ms: Int64 = field("0+")


class ExpireDelegationTokenResponse(Message, key=40, versions="1-2", flexible="2+"):
    error_code: Int16 = field("0+")
    expiry_timestamp_ms: Int64 = field("0+")
    throttle_time_ms: Int32 = field("0+")


class DescribeDelegationTokenOwner(Struct):
    principal_type: Str = field("0+")
    principal_name: Str = field("0+")


class DescribeDelegationTokenRequest(Message, key=41, versions="1-3", flexible="2+"):
    owners: list[DescribeDelegationTokenOwner] | None = field("0+")


class DescribedDelegationTokenRenewer(Struct):
    principal_type: Str = field("0+")
    principal_name: Str = field("0+")


class DescribedDelegationToken(Struct):
    principal_type: Str = field("0+")
    principal_name: Str = field("0+")
    token_requester_principal_type: Str = field("3+")
    token_requester_principal_name: Str = field("3+")
    issue_timestamp: Int64 = field("0+")
    expiry_timestamp: Int64 = field("0+")
    max_timestamp: Int64 = field("0+")
    token_id: Str = field("0+")
    hmac: Bytes = field("0+")
    renewers: list[DescribedDelegationTokenRenewer] = field("0+")


class DescribeDelegationTokenResponse(Message, key=41, versions="1-3", flexible="2+"):
    error_code: Int16 = field("0+")
    tokens: list[DescribedDelegationToken] = field("0+")
    throttle_time_ms: Int32 = field("0+")


class UserName(Struct):
    name: Str = field("0+")


class DescribeUserScramCredentialsRequest(Message, key=50, versions="0", flexible="0+"):
    users: list[UserName] | None = field("0+")


class CredentialInfo(Struct):
    mechanism: Int8 = field("0+")
    iterations: Int32 = field("0+")


class DescribeUserScramCredentialsResult(Struct):
    user: Str = field("0+")
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("0+")
    credential_infos: list[CredentialInfo] = field("0+")


class DescribeUserScramCredentialsResponse(Message, key=50, versions="0", flexible="0+"):
    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("0+")
    results: list[DescribeUserScramCredentialsResult] = field("0+")


class ScramCredentialDeletion(Struct):
    name: Str = field("0+")
    mechanism: Int8 = field("0+")


class ScramCredentialUpsertion(Struct):
    name: Str = field("0+")
    mechanism: Int8 = field("0+")
    iterations: Int32 = field("0+")
    salt: Bytes = field("0+")
    salted_password: Bytes = field("0+")


class AlterUserScramCredentialsRequest(Message, key=51, versions="0", flexible="0+"):
    deletions: list[ScramCredentialDeletion] = field("0+")
    upsertions: list[ScramCredentialUpsertion] = field("0+")


class AlterUserScramCredentialsResult(Struct):
    user: Str = field("0+")
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("0+")


class AlterUserScramCredentialsResponse(Message, key=51, versions="0", flexible="0+"):
    throttle_time_ms: Int32 = field("0+")
    results: list[AlterUserScramCredentialsResult] = field("0+")


class DefaultPrincipalData(Message, versions="0", flexible="0+"):
    type: Str = field("0+")
    name: Str = field("0+")
    token_authenticated: Bool = field("0+")

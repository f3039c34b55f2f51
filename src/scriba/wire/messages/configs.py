"""Configs, client quotas, features, client telemetry."""

from scriba.wire.schema import (
    Bool,
    Bytes,
    Float64,
    Int8,
    Int16,
    Int32,
    Message,
    NullableStr,
    Str,
    Struct,
    Uuid,
    field,
)


class DescribeConfigsResource(Struct):
    resource_type: Int8 = field("0+")
    resource_name: Str = field("0+")
    configuration_keys: list[Str] | None = field("0+")


class DescribeConfigsRequest(Message, key=32, versions="1-4", flexible="4+"):
    resources: list[DescribeConfigsResource] = field("0+")
    include_synonyms: Bool = field("1+")
    include_documentation: Bool = field("3+")


class DescribeConfigsSynonym(Struct):
    name: Str = field("1+")
    value: NullableStr = field("1+")
    source: Int8 = field("1+")


class DescribeConfigsResourceResult(Struct):
    name: Str = field("0+")
    value: NullableStr = field("0+")
    read_only: Bool = field("0+")
    config_source: Int8 = field("1+", default=-1)
    is_sensitive: Bool = field("0+")
    synonyms: list[DescribeConfigsSynonym] = field("1+")
    config_type: Int8 = field("3+", ignorable=True)
    documentation: NullableStr = field("3+", ignorable=True)


class DescribeConfigsResult(Struct):
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("0+")
    resource_type: Int8 = field("0+")
    resource_name: Str = field("0+")
    configs: list[DescribeConfigsResourceResult] = field("0+")


class DescribeConfigsResponse(Message, key=32, versions="1-4", flexible="4+"):
    throttle_time_ms: Int32 = field("0+")
    results: list[DescribeConfigsResult] = field("0+")


class AlterConfigsRequestAlterableConfig(Struct):
    name: Str = field("0+")
    value: NullableStr = field("0+")


class AlterConfigsRequestAlterConfigsResource(Struct):
    resource_type: Int8 = field("0+")
    resource_name: Str = field("0+")
    configs: list[AlterConfigsRequestAlterableConfig] = field("0+")


class AlterConfigsRequest(Message, key=33, versions="0-2", flexible="2+"):
    resources: list[AlterConfigsRequestAlterConfigsResource] = field("0+")
    validate_only: Bool = field("0+")


class AlterConfigsResponseAlterConfigsResourceResponse(Struct):
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("0+")
    resource_type: Int8 = field("0+")
    resource_name: Str = field("0+")


class AlterConfigsResponse(Message, key=33, versions="0-2", flexible="2+"):
    throttle_time_ms: Int32 = field("0+")
    responses: list[AlterConfigsResponseAlterConfigsResourceResponse] = field("0+")


class IncrementalAlterConfigsRequestAlterableConfig(Struct):
    name: Str = field("0+")
    config_operation: Int8 = field("0+")
    value: NullableStr = field("0+")


class IncrementalAlterConfigsRequestAlterConfigsResource(Struct):
    resource_type: Int8 = field("0+")
    resource_name: Str = field("0+")
    configs: list[IncrementalAlterConfigsRequestAlterableConfig] = field("0+")


class IncrementalAlterConfigsRequest(Message, key=44, versions="0-1", flexible="1+"):
    resources: list[IncrementalAlterConfigsRequestAlterConfigsResource] = field("0+")
    validate_only: Bool = field("0+")


class IncrementalAlterConfigsResponseAlterConfigsResourceResponse(Struct):
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("0+")
    resource_type: Int8 = field("0+")
    resource_name: Str = field("0+")


class IncrementalAlterConfigsResponse(Message, key=44, versions="0-1", flexible="1+"):
    throttle_time_ms: Int32 = field("0+")
    responses: list[IncrementalAlterConfigsResponseAlterConfigsResourceResponse] = field("0+")


class ListConfigResourcesRequest(Message, key=74, versions="0-1", flexible="0+"):
    resource_types: list[Int8] = field("1+")


class ConfigResource(Struct):
    resource_name: Str = field("0+")
    resource_type: Int8 = field("1+", default=16, ignorable=True)


class ListConfigResourcesResponse(Message, key=74, versions="0-1", flexible="0+"):
    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("0+")
    config_resources: list[ConfigResource] = field("0+")


class ComponentData(Struct):
    entity_type: Str = field("0+")
    match_type: Int8 = field("0+")
    match: NullableStr = field("0+")


class DescribeClientQuotasRequest(Message, key=48, versions="0-1", flexible="1+"):
    components: list[ComponentData] = field("0+")
    strict: Bool = field("0+")


class DescribeClientQuotasResponseEntityData(Struct):
    entity_type: Str = field("0+")
    entity_name: NullableStr = field("0+")


class ValueData(Struct):
    key: Str = field("0+")
    value: Float64 = field("0+")


class DescribeClientQuotasResponseEntryData(Struct):
    entity: list[DescribeClientQuotasResponseEntityData] = field("0+")
    values: list[ValueData] = field("0+")


class DescribeClientQuotasResponse(Message, key=48, versions="0-1", flexible="1+"):
    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("0+")
    entries: list[DescribeClientQuotasResponseEntryData] | None = field("0+")


class AlterClientQuotasRequestEntityData(Struct):
    entity_type: Str = field("0+")
    entity_name: NullableStr = field("0+")


class OpData(Struct):
    key: Str = field("0+")
    value: Float64 = field("0+")
    remove: Bool = field("0+")


class AlterClientQuotasRequestEntryData(Struct):
    entity: list[AlterClientQuotasRequestEntityData] = field("0+")
    ops: list[OpData] = field("0+")


class AlterClientQuotasRequest(Message, key=49, versions="0-1", flexible="1+"):
    entries: list[AlterClientQuotasRequestEntryData] = field("0+")
    validate_only: Bool = field("0+")


class AlterClientQuotasResponseEntityData(Struct):
    entity_type: Str = field("0+")
    entity_name: NullableStr = field("0+")


class AlterClientQuotasResponseEntryData(Struct):
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("0+")
    entity: list[AlterClientQuotasResponseEntityData] = field("0+")


class AlterClientQuotasResponse(Message, key=49, versions="0-1", flexible="1+"):
    throttle_time_ms: Int32 = field("0+")
    entries: list[AlterClientQuotasResponseEntryData] = field("0+")


class FeatureUpdateKey(Struct):
    feature: Str = field("0+")
    max_version_level: Int16 = field("0+")
    allow_downgrade: Bool = field("0")
    upgrade_type: Int8 = field("1+", default=1)


class UpdateFeaturesRequest(Message, key=57, versions="0-2", flexible="0+"):
    timeout_ms: Int32 = field("0+", default=60000)
    feature_updates: list[FeatureUpdateKey] = field("0+")
    validate_only: Bool = field("1+")


class UpdatableFeatureResult(Struct):
    feature: Str = field("0+")
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("0+")


class UpdateFeaturesResponse(Message, key=57, versions="0-2", flexible="0+"):
    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("0+")
    results: list[UpdatableFeatureResult] = field("0-1", ignorable=True)


class GetTelemetrySubscriptionsRequest(Message, key=71, versions="0", flexible="0+"):
    client_instance_id: Uuid = field("0+")


class GetTelemetrySubscriptionsResponse(Message, key=71, versions="0", flexible="0+"):
    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("0+")
    client_instance_id: Uuid = field("0+")
    subscription_id: Int32 = field("0+")
    accepted_compression_types: list[Int8] = field("0+")
    push_interval_ms: Int32 = field("0+")
    telemetry_max_bytes: Int32 = field("0+")
    delta_temporality: Bool = field("0+")
    requested_metrics: list[Str] = field("0+")


class PushTelemetryRequest(Message, key=72, versions="0", flexible="0+"):
    client_instance_id: Uuid = field("0+")
    subscription_id: Int32 = field("0+")
    terminating: Bool = field("0+")
    compression_type: Int8 = field("0+")
    metrics: Bytes = field("0+")


class PushTelemetryResponse(Message, key=72, versions="0", flexible="0+"):
    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("0+")

/* Every function by its number. Made by tools/gen_capi_entries.py from openhtp/abi/tables.py. */

#define BACKEND_ID 6
#define SYSTEM_SLOTS 90
#define PROVIDER_NAME "HTP_QTI_AISW"
#define SYSTEM_PROVIDER_NAME "SYSTEM_QTI_AISW"
#define CORE_VERSION "OPENHTP_CORE_API", "2.40.0"
#define HTP_VERSION "OPENHTP_HTP_API", "5.51.0"
#define SYSTEM_VERSION "OPENHTP_SYSTEM_API", "1.15.0"

F1(0, u32) /* propertyHasCapability */
F3(1, ptr, ptr, ptr) /* backendCreate */
F2(2, ptr, ptr) /* backendSetConfig */
F1(3, ptr) /* backendGetApiVersion */
F1(4, ptr) /* backendGetBuildId */
F4(5, ptr, ptr, ptr, ptr) /* backendRegisterOpPackage */
F3(6, ptr, ptr, ptr) /* backendGetSupportedOperations */
static word f7(ptr a, bytes80 b) CALL(7, W(a), W(&b)) /* backendValidateOpConfig */
F1(8, ptr) /* backendFree */
F4(9, ptr, ptr, ptr, ptr) /* contextCreate */
F2(10, ptr, ptr) /* contextSetConfig */
F2(11, ptr, ptr) /* contextGetBinarySize */
F4(12, ptr, ptr, u64, ptr) /* contextGetBinary */
F7(13, ptr, ptr, ptr, ptr, u64, ptr, ptr) /* contextCreateFromBinary */
F2(14, ptr, ptr) /* contextFree */
F4(15, ptr, ptr, ptr, ptr) /* graphCreate */
F3(16, ptr, ptr, ptr) /* graphCreateSubgraph */
F2(17, ptr, ptr) /* graphSetConfig */
static word f18(ptr a, bytes80 b) CALL(18, W(a), W(&b)) /* graphAddNode */
F3(19, ptr, ptr, ptr) /* graphFinalize */
F3(20, ptr, ptr, ptr) /* graphRetrieve */
F7(21, ptr, ptr, u32, ptr, u32, ptr, ptr) /* graphExecute */
F9(22, ptr, ptr, u32, ptr, u32, ptr, ptr, ptr, ptr) /* graphExecuteAsync */
F2(23, ptr, ptr) /* tensorCreateContextTensor */
F2(24, ptr, ptr) /* tensorCreateGraphTensor */
F3(25, ptr, u32, ptr) /* logCreate */
F2(26, ptr, u32) /* logSetLogLevel */
F1(27, ptr) /* logFree */
F3(28, ptr, u32, ptr) /* profileCreate */
F2(29, ptr, ptr) /* profileSetConfig */
F3(30, ptr, ptr, ptr) /* profileGetEvents */
F3(31, u64, ptr, ptr) /* profileGetSubEvents */
F2(32, u64, ptr) /* profileGetEventData */
F2(33, u64, ptr) /* profileGetExtendedEventData */
F1(34, ptr) /* profileFree */
F4(35, ptr, ptr, u32, ptr) /* memRegister */
F2(36, ptr, u32) /* memDeRegister */
F2(37, ptr, ptr) /* deviceGetPlatformInfo */
F2(38, ptr, ptr) /* deviceFreePlatformInfo */
F1(39, ptr) /* deviceGetInfrastructure */
F3(40, ptr, ptr, ptr) /* deviceCreate */
F2(41, ptr, ptr) /* deviceSetConfig */
F2(42, ptr, ptr) /* deviceGetInfo */
F1(43, ptr) /* deviceFree */
F3(44, ptr, ptr, ptr) /* signalCreate */
F2(45, ptr, ptr) /* signalSetConfig */
F1(46, ptr) /* signalTrigger */
F1(47, ptr) /* signalFree */
F2(48, u64, ptr) /* errorGetMessage */
F2(49, u64, ptr) /* errorGetVerboseMessage */
F1(50, ptr) /* errorFreeVerboseMessage */
F3(51, ptr, ptr, u32) /* graphPrepareExecutionEnvironment */
F3(52, ptr, ptr, u32) /* graphReleaseExecutionEnvironment */
F2(53, ptr, ptr) /* graphGetProperty */
F5(54, ptr, ptr, ptr, ptr, u64) /* contextValidateBinary */
F8(55, ptr, ptr, ptr, ptr, u64, ptr, ptr, ptr) /* contextCreateFromBinaryWithSignal */
F5(56, ptr, ptr, ptr, ptr, ptr) /* contextCreateFromBinaryListAsync */
F3(57, ptr, ptr, u64) /* tensorUpdateGraphTensors */
F3(58, ptr, ptr, u64) /* tensorUpdateContextTensors */
F4(59, ptr, ptr, u32, ptr) /* contextGetBinarySectionSize */
F7(60, ptr, ptr, u32, ptr, ptr, ptr, ptr) /* contextGetBinarySection */
F6(61, ptr, ptr, u32, ptr, ptr, ptr) /* contextApplyBinarySection */
F2(62, ptr, ptr) /* backendGetProperty */
F2(63, ptr, ptr) /* contextGetProperty */
F4(64, ptr, ptr, ptr, ptr) /* contextGetIncrementalBinary */
F3(65, ptr, ptr, u64) /* contextReleaseIncrementalBinary */
F2(66, ptr, ptr) /* contextFinalize */
F1(67, ptr) /* globalConfigSet */
F9(68, ptr, ptr, ptr, ptr, ptr, u64, ptr, ptr, ptr) /* contextCreateFromBinaryWithCallback */
F9(69, ptr, ptr, ptr, u64, u8, ptr, ptr, ptr, ptr) /* contextGetBinarySectionUpdate */
static word f70(bytes32 a, ptr b) CALL(70, W(&a), W(b)) /* contextFreeBinarySectionUpdate */
F1(128, ptr) /* systemContextCreate */
F5(129, ptr, ptr, u64, ptr, ptr) /* systemContextGetBinaryInfo */
F4(130, ptr, ptr, u64, ptr) /* systemContextGetMetaData */
F1(131, ptr) /* systemContextFree */
static word f132(bytes144 a, ptr b) CALL(132, W(&a), W(b)) /* systemTensorGetMemoryFootprint */
F3(133, ptr, u32, ptr) /* systemLogCreate */
F2(134, ptr, u32) /* systemLogSetLogLevel */
F1(135, ptr) /* systemLogFree */
F3(136, ptr, ptr, ptr) /* systemDlcCreateFromFile */
F4(137, ptr, ptr, u64, ptr) /* systemDlcCreateFromBinary */
/* systemDlcComposeGraphs takes a structure of unknown size, so that nothing behind it can be found. */
static word f138(void)
{
    return NOT_SUPPORTED;
}
F3(139, ptr, ptr, ptr) /* systemDlcGetOpMappings */
F1(140, ptr) /* systemDlcFree */
static word f141(bytes24 a, ptr b, u32 c, ptr d) CALL(141, W(&a), W(b), W(c), W(d)) /* systemProfileCreateSerializationTarget */
F3(142, ptr, ptr, u32) /* systemProfileSerializeEventData */
F1(143, ptr) /* systemProfileFreeSerializationTarget */
F3(192, u32, u32, ptr) /* create_id */
F1(193, u32) /* destroy_id */
F2(194, u32, ptr) /* set_power */
F3(195, u32, u32, ptr) /* set_memory */

static void *const core_entries[] = {
    f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20, f21, f22,
    f23, f24, f25, f26, f27, f28, f29, f30, f31, f32, f33, f34, f35, f36, f37, f38, f39, f40, f41, f42, f43,
    f44, f45, f46, f47, f48, f49, f50, f51, f52, f53, f54, f55, f56, f57, f58, f59, f60, f61, f62, f63, f64,
    f65, f66, f67, f68, f69, f70,
};

static void *const system_entries[] = {
    f128, f129, f130, f131, f132, f133, f134, f135, f136, f137, f138, f139, f140, f141, f142, f143,
};

static void *const power_entries[] = {
    f192, f193, f194, f195,
};
